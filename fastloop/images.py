"""What options that work on images agree on: encodings, colours, and one resize for all."""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np
import torch
from torchvision.transforms.v2 import functional

from fastloop.types import BadData, Tree, Unsupported

Encoding = Literal["JPEG", "CMYK JPEG", "PNG"]

JPEG_MAGIC, PNG_MAGIC = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
START_OF_FRAME = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def image_and_label(name: str, pair: Tree) -> tuple[torch.Tensor, torch.Tensor | int]:
    """Both, with the image a float tensor; raises Unsupported for another sample."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise Unsupported(f"transform={name}: it takes (image, label) samples")
    image, label = pair
    if not (isinstance(image, torch.Tensor) and image.is_floating_point() and image.ndim >= 3):
        raise Unsupported(f"transform={name}: it takes float images (channels, height, width)")
    return image, label


def encoding_of(data: bytes) -> Encoding:
    """What an image file is, by its first bytes; every decoder asks, so that all refuse the same.

    Raises BadData for what is neither JPEG nor PNG, and for PNG of 16 bits, which some libraries
    cut to 8, some scale and some leave.
    """
    if data.startswith(JPEG_MAGIC):
        return "CMYK JPEG" if _frame(data)[0] == 4 else "JPEG"
    if data.startswith(PNG_MAGIC):
        if data[24:25] == b"\x10":
            raise BadData("a PNG of 16 bits a channel; images of 8 bits are read")
        return "PNG"
    raise BadData("neither a JPEG nor a PNG file" if data else "the file is empty")


def has_an_end(data: bytes) -> bool:
    """True where a JPEG or PNG file's end marker is there, after the header."""
    if data.startswith(PNG_MAGIC):
        return data.rfind(b"IEND") > 0
    # from the frame on: a thumbnail in the header has an end of its own
    return data.rfind(b"\xff\xd9", _frame(data)[1]) > 0


def is_whole_png(data: bytes) -> bool:
    """True where every chunk of a PNG file up to its end has the checksum that it names."""
    place = len(PNG_MAGIC)
    while place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        named = int.from_bytes(data[end : end + 4], "big")
        if zlib.crc32(memoryview(data)[place + 4 : end]) != named:
            return False
        if data[place + 4 : place + 8] == b"IEND":
            return True
        place = end + 4
    return False


def _frame(data: bytes) -> tuple[int, int]:
    """Number of colour components of a JPEG, and where its frame begins; 0 for an unknown one."""
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker in START_OF_FRAME:
            return data[place + 9], place
        # a marker may be preceded by any number of fill bytes
        length = int.from_bytes(data[place + 2 : place + 4], "big") + 2
        place += 1 if marker == 0xFF else length
    return 0, 0


def rgb_of_cmyk(stored: np.ndarray) -> np.ndarray:
    """(height, width, 3) uint8 of the four values a pixel that a JPEG stores, as Pillow does it.

    Adobe's convention, which Pillow takes every such file for: 255 is no ink.
    """
    ink, paper = 255 - stored[..., :3].astype(np.int32), stored[..., 3:].astype(np.int32)
    product = ink * paper + 128
    return (paper - (((product >> 8) + product) >> 8)).astype(np.uint8)


def covering(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of that image resized, its sides' ratio kept, to just cover `size`."""
    scale = max(size[0] / height, size[1] / width)
    return max(size[0], round(height * scale)), max(size[1], round(width * scale))


def centred(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """First row and column of the crop of that size out of the image's middle."""
    return (height - size[0]) // 2, (width - size[1]) // 2


def resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(*size, 3) uint8: the image resized to cover `size`, and its middle.

    Always torchvision's bilinear resize of uint8 with antialiasing, whichever library has decoded:
    their own resizes differ from each other.
    """
    height, width = covering(pixels.shape[0], pixels.shape[1], size)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    image = functional.resize(image, [height, width], antialias=True)
    top, left = centred(height, width, size)
    image = image[:, top : top + size[0], left : left + size[1]]
    return image.permute(1, 2, 0).contiguous().numpy()


def to_floats(pixels: np.ndarray) -> torch.Tensor:
    """(3, height, width) float32 in 0..1 of (height, width, 3) uint8, as ToTensor makes it."""
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)
