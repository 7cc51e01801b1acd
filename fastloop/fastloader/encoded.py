"""Encoded images as a column: decoded in the loader's threads, each into its place in the batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.fastloader.codecs import chosen, codec
from fastloop.fastloader.columns import Kind
from fastloop.fastloader.travel import packed, unpacked


class Images:
    """(height, width, 3) uint8 of encoded images, RGB; with channels_first (3, height, width), of
    which a batch lies in memory as torch.channels_last.

    encoded: paths of files, their bytes, or (one uint8 array of all of them, offsets): image i is
    array[offsets[i]:offsets[i + 1]]. size: (height, width) that each is resized to, without regard
    to its sides' ratio; None: all have the size of the first.
    decoder: "simplejpeg" (JPEG; OpenCV reads other files, and resizes), "torchvision" (JPEG) or
    "pil"; None: the first of these that is installed. `decoder` tells which. Their resizes agree
    within 1 of 255, but for antialias: that is OpenCV's INTER_AREA, or torchvision's and Pillow's
    bilinear. With simplejpeg, cv2.setNumThreads(0) is done for the whole process.

    Raises ValueError for settings that can't be and ImportError without the decoder's library; in
    the epoch OSError or ValueError that names the file, or the image's number.
    """

    slow: ClassVar[bool] = True
    """A sample costs more than its copy: see Source.together."""

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
        self.decoder = chosen(decoder)
        self._encoded = _encoded(encoded)

    def __repr__(self) -> str:
        told = f"size={self.size}, channels_first={self.channels_first}"
        told += f", antialias={self.antialias}, decoder={self.decoder!r}"
        return f"Images({len(self)} images, {told})"

    def __len__(self) -> int:
        return len(self._encoded)

    @cached_property
    def kind(self) -> Kind:
        """uint8 of the size, or of the first image's."""
        height, width = self.size or self._decoded(0).shape[:2]
        if self.channels_first:
            return Kind(torch.uint8, (3, height, width), channels_last=True)
        return Kind(torch.uint8, (height, width, 3))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode those images, one after the other."""
        shape = self.kind.shape[1:] if self.channels_first else self.kind.shape[:2]
        resize = codec(self.decoder).resize
        for index, row in zip(indices.tolist(), out.reshape(-1, *shape, 3), strict=True):
            pixels = self._decoded(index)
            if pixels.shape == row.shape:
                np.copyto(row, pixels)
            elif self.size is None:
                found = f"it is {pixels.shape[0]} x {pixels.shape[1]}, the first one {shape}"
                raise ValueError(f"{self._encoded.name(index)}: {found}; size= brings them to one")
            else:
                resize(pixels, row, self.antialias)

    def _decoded(self, index: int) -> np.ndarray:
        data = self._encoded.read(index)
        try:
            return codec(self.decoder).decoded(data)
        except Exception as error:  # of three libraries
            raise ValueError(f"{self._encoded.name(index)}: {error}") from error


@dataclass(frozen=True)
class Files:
    """A file an image."""

    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        """Raises OSError, which names the file."""
        with open(self.paths[index], "rb", buffering=0) as file:
            return file.readall()

    def name(self, index: int) -> str:
        """The path."""
        return self.paths[index]


@dataclass(frozen=True)
class Held:
    """The bytes of each."""

    images: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> bytes:
        """The bytes."""
        return self.images[index]

    def name(self, index: int) -> str:
        """By its number."""
        return f"image {index}"


@dataclass(frozen=True)
class Packed:
    """One after the other in an array."""

    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def read(self, index: int) -> np.ndarray:
        """A view."""
        return self.data[self.offsets[index] : self.offsets[index + 1]]

    def name(self, index: int) -> str:
        """By its number, and where it lies."""
        return f"image {index} (bytes {self.offsets[index]} to {self.offsets[index + 1]})"

    def __getstate__(self) -> dict[str, Any]:
        """With maps that are mapped again."""
        return packed(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpacked(state))


def _encoded(given: Any) -> Files | Held | Packed:
    if isinstance(given, tuple) and len(given) == 2 and hasattr(given[0], "dtype"):
        return _packed(*given)
    images = list(given)
    if images and all(isinstance(one, str | Path | os.PathLike) for one in images):
        return Files([os.fspath(one) for one in images])
    if images and all(isinstance(one, bytes | bytearray | memoryview) for one in images):
        return Held(images)
    kinds = sorted({type(one).__name__ for one in images}) or "none"
    raise ValueError(f"images are paths, bytes, or (uint8 array, offsets), got {kinds}")


def _packed(data: Any, offsets: Any) -> Packed:
    data, offsets = np.asanyarray(data), np.asarray(offsets)
    is_whole = data.dtype == np.uint8 and data.ndim == offsets.ndim == 1 and len(offsets) > 1
    if not is_whole or offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        told = f"{data.dtype} of shape {data.shape} and {offsets.shape}"
        raise ValueError(f"packed images are one uint8 array and n + 1 rising offsets, got {told}")
    return Packed(data, offsets)
