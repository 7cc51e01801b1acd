"""`decoder=pil`: Pillow, the decoder of most training scripts."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import PIL
from PIL import features

from fastloop.core.types import option
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_pillow


@option
class PilDecoder:
    """Pillow with `convert("RGB")`, the reference for all decoders.

    Grey values are repeated, and transparency is dropped without blending. CMYK values are read by
    Adobe's convention. Colour profiles and the EXIF orientation are ignored.
    """

    is_reference: ClassVar[bool] = True
    """True: FastLoader's native decoder delivers the same pixels, bit by bit."""

    def library(self) -> str:
        """The versions of Pillow and of its libjpeg-turbo.

        Wheels of Pillow contain libjpeg-turbo since version 9.0; other builds may lack it.
        """
        turbo = features.version_feature("libjpeg_turbo")
        return f"Pillow {PIL.__version__}, " + (
            f"libjpeg-turbo {turbo}" if turbo else "without libjpeg-turbo"
        )

    def decode(self, data: bytes) -> np.ndarray:
        """The pixels of an image file, (height, width, 3) uint8 RGB.

        Raises BadData for a file that is broken, or neither JPEG nor PNG nor WebP.
        """
        return decode_rgb(data, decode_by_pillow)
