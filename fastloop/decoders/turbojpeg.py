"""`decoder=turbojpeg`: libjpeg-turbo and nothing around it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from fastloop.images import encoding_of, rgb_of_cmyk
from fastloop.optional import imported
from fastloop.types import BadData, option


@option
class Turbojpeg:
    """simplejpeg, which brings its own libjpeg-turbo, in the place of seed 002's jpeg4py, which is
    no longer maintained."""

    def library(self) -> str:
        """simplejpeg's version; raises Unsupported where it is not installed."""
        _simplejpeg()
        return f"simplejpeg {version('simplejpeg')}"

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB; raises BadData, also for PNG."""
        encoding = encoding_of(data)
        if encoding == "PNG":
            raise BadData("a PNG file, and decoder=turbojpeg reads JPEG only; decoder=pil reads it")
        try:
            if encoding == "CMYK JPEG":
                return rgb_of_cmyk(_simplejpeg().decode_jpeg(data, colorspace="CMYK"))
            return _simplejpeg().decode_jpeg(data, colorspace="RGB")
        except ValueError as error:
            raise BadData(f"a broken {encoding} ({error})") from error


@cache
def _simplejpeg() -> Any:
    return imported("simplejpeg", "decoder=turbojpeg", "pip install simplejpeg")
