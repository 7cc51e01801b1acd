"""`decoder=torchvision`: torchvision.io, which decodes into a tensor."""

from __future__ import annotations

import numpy as np
import torch
import torchvision

from fastloop.core.types import Unsupported, option
from fastloop.data.image_pixels import decode_rgb
from fastloop.fastloader.columns.decoders import decode_by_torchvision


@option
class TorchvisionDecoder:
    """torchvision's `decode_image`, deprecated since torchvision 0.29 in favour of TorchCodec."""

    def library(self) -> str:
        """torchvision's version; raises Unsupported if it has no image codecs."""
        if not hasattr(torch.ops.image, "decode_image"):
            raise Unsupported("decoder=torchvision: this torchvision was built without codecs")
        return f"torchvision {torchvision.__version__}"

    def decode(self, data: bytes) -> np.ndarray:
        """The pixels of an image file, (height, width, 3) uint8 RGB.

        Raises BadData for a file that is broken, or neither JPEG nor PNG nor WebP.
        """
        return decode_rgb(data, decode_by_torchvision)
