"""Encoded images as a column: the loader's threads decode each into its row of the batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.fastloader.columns.codecs import choose_decoder, load_codec
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.file_region import pack_maps, unpack_maps
from fastloop.fastloader.columns.image_headers import Encoded, encoding_of


class Images:
    """RGB samples of shape (height, width, 3), uint8, decoded from JPEG and PNG images.

    Args:
        encoded: paths of files, their bytes, or (one uint8 array of all of them, offsets), where
            image i is array[offsets[i]:offsets[i + 1]].
        size: (height, width) to which each image is resized, ignoring its aspect ratio; None:
            all images have the size of the first.
        channels_first: deliver (3, height, width) in torch's memory_format channels_last.
        antialias: average the pixels when an image is made smaller.
        decoder: "simplejpeg" (OpenCV decodes PNG files, and resizes), "torchvision" or "pil"; None:
            the first of these that is installed, which the attribute `decoder` then names.

    All decoders read JPEG files and PNG files of 8 bits per channel, and convert other colour
    spaces as Pillow's `convert("RGB")` does. Their resizes agree within 1 of 255, except with
    antialias: OpenCV's is INTER_AREA, torchvision's and Pillow's are bilinear. "simplejpeg" calls
    cv2.setNumThreads(0), which affects the whole process.

    Raises ValueError for an invalid argument and ImportError where the decoder's library is
    missing; while iterating, OSError or ValueError that names the file or the image's number.

    >>> loader = FastLoader((Images(paths, size=(224, 224)), labels), batch_size=64, shuffle=True)
    """

    slow: ClassVar[bool] = True
    """Decoding costs more than a copy, see `Column`."""

    def __init__(
        self,
        encoded: Any,
        size: tuple[int, int] | None = None,
        *,
        channels_first: bool = False,
        antialias: bool = False,
        decoder: str | None = None,
    ) -> None:
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ValueError(f"size={size}: allowed are (height, width) of 1 or more, and None")
        self.size, self.channels_first, self.antialias = size, channels_first, antialias
        self.decoder = choose_decoder(decoder)
        self._images = _open_images(encoded)

    def __repr__(self) -> str:
        settings = f"size={self.size}, channels_first={self.channels_first}"
        settings += f", antialias={self.antialias}, decoder={self.decoder!r}"
        return f"Images({len(self)} images, {settings})"

    def __len__(self) -> int:
        return len(self._images)

    @cached_property
    def spec(self) -> SampleSpec:
        """uint8 images of `size`, or of the first image's size."""
        height, width = self.size or self._decode(0).shape[:2]
        if self.channels_first:
            return SampleSpec(torch.uint8, (3, height, width), channels_last=True)
        return SampleSpec(torch.uint8, (height, width, 3))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode the images at `indices` to `out`, one after the other."""
        shape = self.spec.shape[1:] if self.channels_first else self.spec.shape[:2]
        resize = load_codec(self.decoder).resize
        for index, row in zip(indices.tolist(), out.reshape(-1, *shape, 3), strict=True):
            pixels = self._decode(index)
            if pixels.shape == row.shape:
                np.copyto(row, pixels)
            elif self.size is None:
                actual = f"it is {pixels.shape[0]} x {pixels.shape[1]}, the first one {shape}"
                raise ValueError(f"{self._images.name(index)}: {actual}; set size= to resize all")
            else:
                resize(pixels, row, self.antialias)

    def _decode(self, index: int) -> np.ndarray:
        data = self._images.read(index)
        try:
            return load_codec(self.decoder).decode(data, encoding_of(data))
        except ValueError as error:
            raise ValueError(f"{self._images.name(index)}: {error}") from error


@dataclass(frozen=True)
class ImageFiles:
    """Encoded images in files."""

    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        """Return the file's bytes; raises OSError that names the file."""
        with open(self.paths[index], "rb", buffering=0) as file:
            return file.readall()

    def name(self, index: int) -> str:
        """Return the path."""
        return self.paths[index]


@dataclass(frozen=True)
class ImageBytes:
    """Encoded images in bytes objects."""

    images: Sequence[Encoded]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Encoded:
        """Return the bytes."""
        return self.images[index]

    def name(self, index: int) -> str:
        """Return the image's number."""
        return f"image {index}"


@dataclass(frozen=True)
class ImageArray:
    """Encoded images concatenated in one array."""

    data: np.ndarray
    """One-dimensional uint8."""
    offsets: np.ndarray
    """Image i is data[offsets[i]:offsets[i + 1]]."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def read(self, index: int) -> memoryview:
        """Return a view of the array."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].data

    def name(self, index: int) -> str:
        """Return the image's number, and the bytes of the array that hold it."""
        return f"image {index} (bytes {self.offsets[index]} to {self.offsets[index + 1]})"

    def __getstate__(self) -> dict[str, Any]:
        return pack_maps(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpack_maps(state))


def _open_images(encoded: Any) -> ImageFiles | ImageBytes | ImageArray:
    if isinstance(encoded, tuple) and len(encoded) == 2 and hasattr(encoded[0], "dtype"):
        return _image_array(*encoded)
    images = list(encoded)
    if images and all(isinstance(image, str | os.PathLike) for image in images):
        return ImageFiles([os.fspath(image) for image in images])
    if images and all(isinstance(image, Encoded) for image in images):
        return ImageBytes(images)
    types = sorted({type(image).__name__ for image in images}) or "none"
    raise ValueError(f"images are paths, bytes, or (uint8 array, offsets), got {types}")


def _image_array(data: Any, offsets: Any) -> ImageArray:
    data, offsets = np.asanyarray(data), np.asarray(offsets)
    is_whole = data.dtype == np.uint8 and data.ndim == offsets.ndim == 1 and len(offsets) > 1
    if not is_whole or offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        got = f"{data.dtype} of shape {data.shape} and {offsets.shape}"
        raise ValueError(f"packed images are one uint8 array and n + 1 rising offsets, got {got}")
    return ImageArray(data, offsets)
