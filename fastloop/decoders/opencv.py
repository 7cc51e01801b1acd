"""`decoder=opencv`: cv2.imdecode."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fastloop.images import encoding_of, has_an_end
from fastloop.optional import imported
from fastloop.types import BadData, option


@option
class Opencv:
    """BGR, turned into RGB, on one thread: the processes that load are the parallel ones."""

    def library(self) -> str:
        """OpenCV's version; raises Unsupported where it is not installed."""
        return f"OpenCV {_cv2().__version__}"

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB; raises BadData."""
        encoding, cv2 = encoding_of(data), _cv2()
        if not has_an_end(data):  # OpenCV alone makes a picture of what there is, and grey below
            raise BadData(f"a broken {encoding} (it is cut off)")
        flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            raise BadData(f"a broken {encoding} ({error.err})") from error
        if image is None:
            raise BadData(f"a broken {encoding}")
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


@cache
def _cv2() -> Any:
    cv2 = imported("cv2", "decoder=opencv", "pip install opencv-python-headless")
    cv2.setNumThreads(0)
    return cv2
