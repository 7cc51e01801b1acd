"""`decoder=turbojpeg`: libjpeg-turbo, through the library simplejpeg."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np

from fastloop.core.optional_libraries import Library
from fastloop.core.types import option
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_simplejpeg
from fastloop.fastloader.columns.image_headers import Encoded, Encoding


@option
class TurbojpegDecoder:
    """A decoder that reads JPEG files only, with the libjpeg-turbo that simplejpeg bundles."""

    def library(self) -> str:
        """Name and version of simplejpeg; raises Unsupported if simplejpeg is not installed."""
        Library("simplejpeg", "decoder=turbojpeg", "pip install simplejpeg").load()
        return f"simplejpeg {version('simplejpeg')}"

    def decode(self, data: bytes) -> np.ndarray:
        """The pixels of a JPEG file, (height, width, 3) uint8 in RGB.

        Raises BadData for PNG and WebP files, and for broken files.
        """
        return decode_rgb(data, _decode_jpeg)


def _decode_jpeg(data: Encoded, encoding: Encoding) -> np.ndarray:
    """Decode a JPEG file; raises ValueError for a file that is broken or no JPEG."""
    if encoding in ("PNG", "WebP"):
        others = "decoder=pil also PNG and WebP"
        raise ValueError(f"a {encoding} file; decoder=turbojpeg reads JPEG only, {others}")
    return decode_by_simplejpeg(data, encoding)
