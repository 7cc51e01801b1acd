"""`decoder=torchcodec`: TorchCodec's decode_image, which decodes into a tensor."""

from __future__ import annotations

import re

import numpy as np
import torch

from fastloop.core.optional_libraries import Library
from fastloop.core.text import first_line
from fastloop.core.types import option
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_pillow
from fastloop.fastloader.columns.image_headers import (
    Encoded,
    Encoding,
    has_end,
    is_for_pillow,
    is_whole_png,
)

LIBRARY = Library("torchcodec", "decoder=torchcodec", "pip install torchcodec")
EXIF = re.compile(rb"\xff\xe1..Exif\0\0", re.DOTALL)
"""The beginning of the EXIF segment of a JPEG file, which may state the image's orientation."""
HEAD_NBYTES = 1 << 16
"""Number of bytes at the beginning of a JPEG file in which the EXIF segment is searched."""


@option
class TorchcodecDecoder:
    """TorchCodec's `decode_image`, with the codecs that TorchCodec ships.

    FFmpeg, which TorchCodec needs for videos only, is not used.
    """

    def library(self) -> str:
        """TorchCodec's name and version; raises Unsupported if TorchCodec is not installed."""
        return f"TorchCodec {LIBRARY.load().__version__}"

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8 RGB pixels of an image file; raises BadData if it is broken."""
        return decode_rgb(data, _decode)


def _decode(data: Encoded, encoding: Encoding) -> np.ndarray:
    """(height, width, 3) uint8 RGB pixels of an image file; raises ValueError if it is broken."""
    if is_for_pillow(data):
        return decode_by_pillow(data, encoding)
    decoders = LIBRARY.load("torchcodec.decoders")
    file = bytearray(data)
    # TorchCodec rotates an image by its EXIF orientation, and no other decoder here does. In a JPEG
    # file the marker of the EXIF segment, APP1, is therefore changed to APP15, which TorchCodec
    # ignores. In a PNG file a change would break a checksum, so Pillow decodes PNG and WebP files
    # with EXIF data.
    if encoding.endswith("JPEG"):
        if found := EXIF.search(file, 0, HEAD_NBYTES):
            file[found.start() + 1] = 0xEF
    elif b"eXIf" in file or b"EXIF" in file:
        return decode_by_pillow(data, encoding)
    if encoding == "PNG" and not is_whole_png(data):
        raise ValueError(f"a broken {encoding} (it is cut off, or a checksum is wrong)")
    if not has_end(bytes(data)):
        raise ValueError(f"a broken {encoding} (it is cut off)")
    try:
        image = decoders.decode_image(torch.frombuffer(file, dtype=torch.uint8), mode="RGB")
    except (RuntimeError, ValueError) as error:
        # A message from C++ begins with a file and a line of source code, which are left out.
        reason = re.sub(r"^.*\.cpp:\d+, ", "", first_line(error))
        raise ValueError(f"a broken {encoding} ({reason})") from error
    return image.permute(1, 2, 0).numpy()
