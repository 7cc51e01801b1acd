"""`dataset=webdataset`: the user's own tar files in webdataset's layout."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
import torchvision.transforms.v2  # noqa: F401 - or each worker would import it, to resize
from pydantic import Field, Strict

from fastloop.core.optional_libraries import Library
from fastloop.core.protocols import Decoder
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.core.types import BadData, Tree, option
from fastloop.data.dataset_files import files_below, files_fingerprint, own_path
from fastloop.data.image_pixels import Size, decode_and_resize, to_floats

IMAGES = ("jpg", "jpeg", "png", "webp")
NUMBERS = ("cls", "cls2", "index", "id")
ARRAYS = ("npy", "ten")
"""File extensions of images, of numbers and of arrays."""
KINDS = ", ".join((*IMAGES, *NUMBERS, *ARRAYS))
"""All of these extensions as text for messages."""
TENSORS = Library("webdataset", "dataset.fields=[ten]", "pip install webdataset")
"""The library that reads .ten files."""

Member = tuple[int, int, int, str]
"""A file in a tar file: number of the tar file, offset and size of the content in bytes, extension.

Members are plain tuples, because pickling NamedTuples for a worker takes four times as long.
"""


@dataclass(frozen=True)
class TarSamples:
    """Samples in tar files: each is a tuple of parts, or the part itself if there is only one.

    An image is float32 (3, height, width) in 0..1, a number is an int, a .npy file is a tensor, and
    a .ten file is a tensor or a tuple of tensors.
    """

    paths: Sequence[Path]
    """The tar files."""
    members: Sequence[tuple[Member, ...]]
    """The files of each sample, one for each field of the dataset."""
    decoder: Decoder
    """Decodes the image files."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> Tree:
        if not 0 <= index < len(self):
            raise IndexError(index)
        parts = [self._part(member) for member in self.members[index]]
        return tuple(parts) if len(parts) > 1 else parts[0]

    def read_file(self, index: int) -> bytes:
        """The content of the sample's first image file."""
        members = self.members[index]
        return self._read(next(each for each in members if _extension_of(each) in IMAGES))

    def decode_file(self, data: bytes) -> np.ndarray:
        """Pixels of an image file, (height, width, 3) uint8, resized; raises BadData."""
        return decode_and_resize(data, self.decoder, self.size)

    def _read(self, member: Member) -> bytes:
        """The content of the file."""
        number, offset, size, _ = member
        with self.paths[number].open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def _part(self, member: Member) -> Tree:
        """The decoded content of the file; raises BadData if it is broken."""
        data = self._read(member)
        number, offset, _, extension = member
        try:
            if extension in IMAGES:
                return to_floats(self.decode_file(data))
            if extension in NUMBERS:
                return int(data)
            if extension == "ten":
                return _tensors(data)
            return torch.from_numpy(np.load(io.BytesIO(data), allow_pickle=False))
        except (BadData, ValueError, TypeError, EOFError, struct.error) as error:
            path = self.paths[number]
            raise BadData(f"{path}: the .{extension} file at byte {offset}: {error}") from error


@option
class TarDataset:
    """Samples in tar files: the names of a sample's files differ only after the first dot.

    The tar files are not unpacked: each file is read at its place in a tar file. A field is an
    extension, or several alternatives such as `jpg;png`, of which the first that a sample has is
    read.
    """

    label: ClassVar[str] = "webdataset"
    num_classes: ClassVar[int] = 0
    """0 stands for the largest label + 1."""
    path: str | None
    """Path of a .tar file, or of a folder with .tar files; None: the user has named no path, and
    the dataset can't be opened."""
    fields: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)]
    """The field of each part of a sample, in the order of the parts."""
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""
    decoder: Decoder
    """Decodes the image files."""

    @property
    def decodes(self) -> bool:
        """True if a part of a sample is an image."""
        return bool({*IMAGES} & {*_extensions(self.fields)})

    @property
    def uint8_scale(self) -> float | None:
        """255 if a part is an image and none is an array; otherwise None, and floats are compared
        bit by bit."""
        has_arrays = bool({*ARRAYS} & {*_extensions(self.fields)})
        return 255.0 if self.decodes and not has_arrays else None

    def fetch(self) -> str:
        """A fingerprint of the tar files, the fields, the decoder and the size.

        Raises BadData for extensions of other kinds, and for samples that lack a field. Raises
        Unsupported for .ten files if webdataset is not installed.
        """
        for name in ";".join(self.fields).split(";"):
            extension = name.rpartition(".")[2]
            if extension not in (*IMAGES, *NUMBERS, *ARRAYS):
                raise BadData(f"dataset.fields={name}: allowed are {KINDS}")
            if extension == "ten":
                TENSORS.check()
        self.open()
        settings = self.fields, self.size, self.decoder.library() if self.decodes else ""
        return files_fingerprint(self.files(), *settings, source_fingerprint(self.decoder))

    def files(self) -> list[Path]:
        """The tar files."""
        path = own_path(self.path, "dataset=webdataset", "a .tar file, or a folder of them")
        return files_below(path, ".tar")

    def open(self) -> TarSamples:
        """The samples; the headers of all tar files are read first.

        Raises BadData for a broken tar file, for a sample that lacks a field, and without samples.
        """
        paths = self.files()
        members = []
        for number, path in enumerate(paths):
            for key, files in _members(number, path).items():
                members.append(tuple(self._member(path, key, files, each) for each in self.fields))
        if not members:
            raise BadData(f"{self.path}: no sample")
        return TarSamples(paths, members, self.decoder, self.size)

    def _member(self, path: Path, key: str, files: dict[str, Member], names: str) -> Member:
        """The file with the first extension of a field that the sample has.

        key: name of the sample. files: extension -> file. names: the field. Raises BadData if the
        sample has none of its extensions.
        """
        for extension in names.split(";"):
            if extension in files:
                return files[extension]
        found = ", ".join(sorted(files))[:80]
        raise BadData(f"{path}: sample {key} has no {names} file; it has {found} (dataset.fields)")


def _extension_of(member: Member) -> str:
    *_, extension = member
    return extension


def _extensions(fields: Sequence[str]) -> list[str]:
    """The last part of each extension in the fields, such as `jpg` of `left.jpg`."""
    return [each.rpartition(".")[2] for field in fields for each in field.split(";")]


def _tensors(data: bytes) -> Tree:
    """The tensor of a .ten file with a single array, or a tuple of the tensors of all arrays."""
    arrays = TENSORS.load("webdataset.tenbin").decode_buffer(data)
    if not arrays:
        raise ValueError("it has no array")
    # The arrays are views of the file's bytes, which are read-only, so they are copied for torch.
    tensors = [torch.from_numpy(array.copy()) for array in arrays]
    return tuple(tensors) if len(tensors) > 1 else tensors[0]


def _members(number: int, path: Path) -> dict[str, dict[str, Member]]:
    """The files of the tar file with that number, in order: key of a sample -> extension -> file.

    Raises BadData if the file is not an uncompressed tar file.
    """
    samples: dict[str, dict[str, Member]] = {}
    try:
        # The ":" in the mode refuses compressed files, in which no sample has an offset.
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                folder, _, name = info.name.rpartition("/")
                stem, _, extension = name.partition(".")
                # webdataset leaves out hidden files and metadata as well.
                if not info.isfile() or not stem or name.startswith("__"):
                    continue
                last = extension.lower().rpartition(".")[2]
                member = number, info.offset_data, info.size, last
                samples.setdefault(f"{folder}/{stem}", {})[extension.lower()] = member
    except (tarfile.TarError, OSError) as error:
        raise BadData(f"{path}: not an uncompressed tar file: {error}") from error
    return samples
