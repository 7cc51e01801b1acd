"""Sources of encoded images: files, bytes objects, or one array of all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastloop.fastloader.columns.image_headers import Encoded
from fastloop.fastloader.columns.mapped_file import MappedFile, find_file, pack_maps, unpack_maps
from fastloop.fastloader.columns.ragged_rows import RaggedRows


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

    def inputs(self, indices: list[int]) -> list[bytes]:
        """Return the paths: the native decoder reads the files itself."""
        return [os.fsencode(self.paths[index]) for index in indices]

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

    def inputs(self, indices: list[int]) -> list[Encoded]:
        """Return the bytes of each image."""
        return [self.read(index) for index in indices]

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
        self._check_file()
        return self.data[self.offsets[index] : self.offsets[index + 1]].data

    def inputs(self, indices: list[int]) -> list[Encoded]:
        """Return the bytes of each image."""
        self._check_file()
        view = self.data.data
        return [view[start:end] for start, end in self._bounds(indices)]

    @cached_property
    def _file(self) -> MappedFile | None:
        return find_file(self.data)

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()

    def _bounds(self, indices: list[int]) -> Iterator[tuple[int, int]]:
        starts, ends = self.offsets[indices], self.offsets[np.asarray(indices) + 1]
        return zip(starts.tolist(), ends.tolist(), strict=True)

    def name(self, index: int) -> str:
        """Return the image's number, and the bytes of the array that hold it."""
        return f"image {index} (bytes {self.offsets[index]} to {self.offsets[index + 1]})"

    def __getstate__(self) -> dict[str, Any]:
        return pack_maps({"data": self.data, "offsets": self.offsets})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpack_maps(state))


EncodedImages = ImageFiles | ImageBytes | ImageArray


def open_images(encoded: Any) -> EncodedImages:
    """The images of paths, of their bytes, of a store, or of (one uint8 array of all of them,
    offsets).

    Raises ValueError for anything else.
    """
    if isinstance(encoded, RaggedRows):
        return _image_array(encoded.values, encoded.offsets)
    if isinstance(encoded, tuple) and len(encoded) == 2 and hasattr(encoded[0], "dtype"):
        return _image_array(*encoded)
    # A string is a sequence of strings, and each of them would be taken for a path.
    if isinstance(encoded, str | os.PathLike):
        path = os.fspath(encoded)
        how = f"open_store({path!r}) opens a store, [{path!r}] is one image"
        raise ValueError(f"images are a sequence, got a path: {how}")
    images = list(encoded)
    # A mixture of paths and bytes is an error below.
    if images and all(isinstance(image, str | os.PathLike) for image in images):
        return ImageFiles([os.fspath(image) for image in images])
    if images and all(isinstance(image, Encoded) for image in images):
        return ImageBytes(images)
    types = sorted({type(image).__name__ for image in images}) or "none"
    allowed = "paths, bytes, or (uint8 array, offsets), or what open_store opens of images"
    raise ValueError(f"images are {allowed}, got {types}")


def _image_array(data: Any, offsets: Any) -> ImageArray:
    data, offsets = np.asanyarray(data), np.asarray(offsets)
    is_whole = data.dtype == np.uint8 and data.ndim == offsets.ndim == 1 and len(offsets) > 1
    if not is_whole or offsets[0] < 0 or offsets[-1] > len(data) or (np.diff(offsets) < 0).any():
        got = f"{data.dtype} of shape {data.shape} and {offsets.shape}"
        raise ValueError(f"packed images are one uint8 array and n + 1 rising offsets, got {got}")
    return ImageArray(data, offsets)
