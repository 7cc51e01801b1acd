"""`decoder=pil`: Pillow, which most training scripts decode with."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import PIL
from PIL import Image, features

from fastloop.images import encoding_of
from fastloop.types import BadData, option

BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


@option
class Pil:
    """`convert("RGB")`: what that makes of other colours is what every decoder here has to give.

    Grey values are repeated, transparency is dropped and not blended, CMYK is taken for Adobe's;
    colour profiles and the orientation in EXIF are ignored.
    """

    def library(self) -> str:
        """Pillow's version, and which libjpeg-turbo is in it, if any: its wheels have it since
        9.0."""
        turbo = features.version_feature("libjpeg_turbo")
        return f"Pillow {PIL.__version__}, " + (
            f"libjpeg-turbo {turbo}" if turbo else "without libjpeg-turbo"
        )

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB; raises BadData."""
        encoding = encoding_of(data)
        try:
            with Image.open(io.BytesIO(data)) as image:
                image.info.pop("transparency", None)  # Pillow warns when it drops a palette's
                return np.array(image.convert("RGB"))
        except (*BROKEN, Image.DecompressionBombError) as error:
            said = "no picture in it" if isinstance(error, Image.UnidentifiedImageError) else error
            raise BadData(f"a broken {encoding} ({said})") from error
