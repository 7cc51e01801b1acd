"""Folders of image files, and the samples that are decoded from them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt, Strict

from fastloop import images
from fastloop.fastloader.columns import Kind
from fastloop.files import edges, fingerprint, source_of
from fastloop.images import resized, to_floats
from fastloop.protocols import Dataset, Decoder, Samples, Uint8Images
from fastloop.types import BadData, Unsupported

SUFFIXES = (".jpg", ".jpeg", ".png")
READ_FILES = 64

Size = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)] | None
"""(height, width) that every image is brought to; None: as it is."""


@dataclass(frozen=True)
class LabelledImages:
    """(float32 (3, height, width) in 0..1, int) samples, each decoded when it is asked for.

    as_uint8: (uint8 (height, width, 3) array, int) samples instead.
    """

    root: Path
    files: Sequence[tuple[str, int]]
    """Path below the root, and label."""
    decoder: Decoder
    size: Size
    as_uint8: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor | np.ndarray, int]:
        name, label = self.files[index]
        pixels = read_pixels(self.root / name, self.decoder, self.size)
        return (pixels if self.as_uint8 else to_floats(pixels)), label

    @property
    def labels(self) -> torch.Tensor:
        """int64, of all."""
        return torch.tensor([label for _, label in self.files], dtype=torch.int64)


@dataclass(frozen=True)
class Decoded:
    """The images of such samples, which have a size, as a column: each is decoded into the
    batch."""

    images: LabelledImages
    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    @property
    def kind(self) -> Kind:
        """What a sample's image is."""
        assert self.images.size
        height, width = self.images.size
        if self.images.as_uint8:
            return Kind(torch.uint8, (height, width, 3))
        return Kind(torch.float32, (3, height, width))

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Decode those images, one after the other; raises BadData that names the file."""
        images, rows = self.images, self.kind.seen(out)
        for index, row in zip(indices.tolist(), rows, strict=True):
            path = images.root / images.files[index][0]
            pixels = torch.from_numpy(read_pixels(path, images.decoder, images.size))
            if images.as_uint8:
                row.copy_(pixels)
            else:
                row.copy_(pixels.permute(2, 0, 1)).div_(255)


def uint8_samples(dataset: Dataset) -> Samples:
    """The samples of images left in uint8; raises Unsupported where the dataset has none."""
    if not isinstance(dataset, Uint8Images):
        raise Unsupported(f"collate=fast: {dataset.label} has no uint8 images")
    return dataset.open_uint8()


def read_pixels(path: Path, decoder: Decoder, size: Size) -> np.ndarray:
    """(height, width, 3) uint8 of an image file; raises BadData that names it."""
    try:
        pixels = decoder.decode(path.read_bytes())
    except BadData as why:
        raise BadData(f"{path}: {why}") from why
    except OSError as error:
        raise BadData(f"{path}: {error.strerror or error}") from error
    return resized(pixels, size) if size else pixels


def class_folders(root: Path) -> list[str]:
    """Names of the folders right below the root in their order, hidden ones left out."""
    if not root.is_dir():
        return []
    return sorted(one.name for one in root.iterdir() if one.is_dir() and one.name[0] != ".")


def labelled_files(root: Path) -> list[tuple[str, int]]:
    """Path below the root and number of the class of each image file, sorted; hidden files left
    out.

    Raises BadData where there is none, or a class has none.
    """
    wanted = "dataset.root is a folder of class folders with images, as cat/1.jpg"
    if not root.is_dir():
        raise BadData(f"{root}: no such folder; {wanted}")
    classes = class_folders(root)
    if not classes:
        count = len(_images_below(root))
        found = f"{count} images, but no class folder" if count else "no class folder, no image"
        raise BadData(f"{root}: {found}; {wanted}")
    files: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        paths = _images_below(root / name)
        if not paths:
            raise BadData(f"{root / name}: no {', '.join(SUFFIXES)} file in this class folder")
        files += [(str(path.relative_to(root)), label) for path in paths]
    return files


def images_fingerprint(
    root: Path, names: Iterable[str], decoder: Decoder, size: Size, *others: object
) -> str:
    """Changes with any file's name, size or time of change, with the edges of 64 of them, and with
    what turns them into pixels.

    To read a large folder whole would take as long as an epoch, in every command.
    Raises Unsupported where the decoder's library is not installed.
    """
    library, names = decoder.library(), list(names)
    seen = [(name, _changed(root / name)) for name in names]
    contents = [edges(root / name) for name in names[:: -(-len(names) // READ_FILES) or 1]]
    code = source_of(decoder), inspect.getsource(images), inspect.getsource(sys.modules[__name__])
    return fingerprint(seen, contents, decoder, library, code, size, *others)


def _changed(path: Path) -> tuple[int, int, int]:
    # ctime, as git does: nobody can set it back, so a file replaced by one as old is another one
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _images_below(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )
