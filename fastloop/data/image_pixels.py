"""The pixels of encoded images: decoding, one resize for all decoders, and conversion to floats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import PositiveInt, Strict

from fastloop.core.protocols import Decoder
from fastloop.core.types import BadData
from fastloop.fastloader.columns.image_headers import Encoded, Encoding, encoding_of

Size = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)]
"""(height, width) to which every image is resized and cropped."""


def decode_file(
    path: Path, decoder: Decoder, size: Size | None, read: Callable[[Path], bytes] = Path.read_bytes
) -> np.ndarray:
    """Pixels of an image file, (height, width, 3) uint8; raises BadData that names the file."""
    try:
        return decode_and_resize(read(path), decoder, size)
    except BadData as error:
        raise BadData(f"{path}: {error}") from error
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from error


def decode_and_resize(data: bytes, decoder: Decoder, size: Size | None) -> np.ndarray:
    """Pixels of the bytes of an image file, (height, width, 3) uint8; raises BadData."""
    pixels = decoder.decode(data)
    return resize_and_crop(pixels, size) if size else pixels


def decode_rgb(data: bytes, decode: Callable[[Encoded, Encoding], np.ndarray]) -> np.ndarray:
    """(height, width, 3) uint8 RGB of an image file, contiguous and writable.

    decode: a function of fastloader.columns.decoders. Raises BadData for a file that is broken, or
    neither JPEG nor PNG nor WebP.
    """
    try:
        pixels = decode(data, encoding_of(data))
    except ValueError as error:
        raise BadData(str(error)) from error
    # torch.from_numpy warns of arrays that can't be written, which some libraries return.
    return np.require(pixels, requirements=["C_CONTIGUOUS", "WRITEABLE"])


def covering_size(height: int, width: int, size: Size) -> tuple[int, int]:
    """(height, width) of an image resized to just cover `size`, keeping its aspect ratio."""
    scale = max(size[0] / height, size[1] / width)
    return max(size[0], round(height * scale)), max(size[1], round(width * scale))


def center_crop_offset(height: int, width: int, size: Size) -> tuple[int, int]:
    """First row and column of the center crop of that size."""
    return (height - size[0]) // 2, (width - size[1]) // 2


def resize_and_crop(pixels: np.ndarray, size: Size) -> np.ndarray:
    """Resize an image to cover `size` and crop its center: (*size, 3) uint8."""
    # torchvision's bilinear resize with antialiasing is used for all decoders. With the resizes of
    # their own libraries, the samples would differ.
    from torchvision.transforms.v2 import functional

    height, width = covering_size(pixels.shape[0], pixels.shape[1], size)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    image = functional.resize(image, [height, width], antialias=True)
    top, left = center_crop_offset(height, width, size)
    image = image[:, top : top + size[0], left : left + size[1]]
    return image.permute(1, 2, 0).contiguous().numpy()


def to_floats(pixels: np.ndarray) -> torch.Tensor:
    """Convert (height, width, 3) uint8 to (3, height, width) float32 in 0..1, as ToTensor does."""
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)
