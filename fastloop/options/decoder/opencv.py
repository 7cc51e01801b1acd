"""`decoder=opencv`: OpenCV's cv2.imdecode."""

from __future__ import annotations

import numpy as np

from fastloop.core.optional_libraries import Library
from fastloop.core.types import option
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_opencv


@option
class OpencvDecoder:
    """OpenCV's `cv2.imdecode` on one thread, with BGR converted to RGB; the loader alone decides
    how many images are decoded in parallel."""

    def library(self) -> str:
        """OpenCV's version; raises Unsupported if it is not installed."""
        cv2 = Library("cv2", "decoder=opencv", "pip install opencv-python-headless").load()
        return f"OpenCV {cv2.__version__}"

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB; raises BadData."""
        return decode_rgb(data, decode_by_opencv)
