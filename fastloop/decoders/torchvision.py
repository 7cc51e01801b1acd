"""`decoder=torchvision`: torchvision.io, straight into a tensor."""

from __future__ import annotations

import re

import numpy as np
import torch
import torchvision.io
from torchvision.io import ImageReadMode

from fastloop.images import encoding_of, is_whole_png, rgb_of_cmyk
from fastloop.types import BadData, Unsupported, option


@option
class Torchvision:
    """`decode_image`, which torchvision 0.29 deprecates in favour of TorchCodec and still has."""

    def library(self) -> str:
        """torchvision's version; raises Unsupported where it has no image codecs."""
        if not hasattr(torch.ops.image, "decode_image"):
            raise Unsupported("decoder=torchvision: this torchvision was built without codecs")
        return f"torchvision {torchvision.__version__}"

    def decode(self, data: bytes) -> np.ndarray:
        """(height, width, 3) uint8, RGB; raises BadData."""
        encoding = encoding_of(data)
        if encoding == "PNG" and not is_whole_png(data):  # torchvision 0.29 crashes on some of them
            raise BadData("a broken PNG (it is cut off, or a checksum is wrong)")
        # Its own conversion of CMYK depends on a marker that Pillow does not look at.
        mode = ImageReadMode.UNCHANGED if encoding == "CMYK JPEG" else ImageReadMode.RGB
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            image = torchvision.io.decode_image(buffer, mode)
        except RuntimeError as error:
            said = re.sub(r"^.*\.cpp:\d+, ", "", str(error).splitlines()[0])
            raise BadData(f"a broken {encoding} ({said})") from error
        pixels = image.permute(1, 2, 0).contiguous().numpy()
        return rgb_of_cmyk(pixels) if encoding == "CMYK JPEG" else pixels
