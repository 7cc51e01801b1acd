"""Folders of labelled image files: list the files, decode them as samples, and compute their
fingerprint."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fastloop.core.fingerprints import edge_digest, fingerprint
from fastloop.core.protocols import Decoder
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.core.types import BadData
from fastloop.data import image_pixels
from fastloop.data.image_pixels import Size, decode_and_resize, decode_file, to_floats
from fastloop.fastloader.columns import decoders, image_headers

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
"""Suffixes of image files, in lower case."""
READ_FILES = 64
"""Maximum number of files with contents that are part of a folder's fingerprint."""


@dataclass(frozen=True)
class LabelledImages:
    """Samples (image, label), each decoded on access; an image is float32 (3, height, width) in
    0..1."""

    root: Path
    """Folder of the files."""
    files: Sequence[tuple[str, int]]
    """Path relative to the root, and label, of each sample."""
    decoder: Decoder
    size: Size | None
    """(height, width) in pixels to which every image is resized and cropped; None: images keep
    their size."""
    as_uint8: bool = False
    """True: images are uint8 arrays (height, width, 3) instead."""
    read: Callable[[Path], bytes] = Path.read_bytes
    """Reads a file; if the plan has a probe, it records each call."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor | np.ndarray, int]:
        pixels = decode_file(self.path(index), self.decoder, self.size, self.read)
        label = self.files[index][1]
        return (pixels if self.as_uint8 else to_floats(pixels)), label

    def path(self, index: int) -> Path:
        """The path of that sample's file."""
        return self.root / self.files[index][0]

    def read_file(self, index: int) -> bytes:
        """The content of that sample's file."""
        return self.read(self.path(index))

    def decode_file(self, data: bytes) -> np.ndarray:
        """Pixels of a file's content, (height, width, 3) uint8, resized; raises BadData if it is
        broken."""
        return decode_and_resize(data, self.decoder, self.size)

    @property
    def labels(self) -> torch.Tensor:
        """Labels of all samples, int64."""
        return torch.tensor([label for _, label in self.files], dtype=torch.int64)


def class_folders(root: Path) -> list[str]:
    """Sorted names of the folders directly below the root, without hidden folders; empty if the
    root is no folder."""
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if path.is_dir() and path.name[0] != ".")


def list_labelled_files(root: Path) -> list[tuple[str, int]]:
    """Relative path and class number of each image file, sorted, without hidden files.

    Raises BadData if there is no image, or a class has none.
    """
    layout = "dataset.root is a folder of class folders with images, as cat/1.jpg"
    if not root.is_dir():
        raise BadData(f"{root}: no such folder; {layout}")
    classes = class_folders(root)
    if not classes:
        count = len(_images_below(root))
        content = f"{count} images, but no class folder" if count else "no class folder, no image"
        raise BadData(f"{root}: {content}; {layout}")
    files: list[tuple[str, int]] = []
    for label, name in enumerate(classes):
        paths = _images_below(root / name)
        if not paths:
            raise BadData(f"{root / name}: no {', '.join(SUFFIXES)} file in this class folder")
        files += [(str(path.relative_to(root)), label) for path in paths]
    return files


def images_fingerprint(
    root: Path, names: Iterable[str], decoder: Decoder, size: Size | None, *others: object
) -> str:
    """Fingerprint of image files and of the settings with which they are decoded.

    The fingerprint covers name, size, modification and status-change times of every file. Reading
    every file would take as long as an epoch, so only the first and last MiB of at most READ_FILES
    files are read. The decoder with its library and code, `size` and `others` are covered, too.

    names: paths relative to the root. Raises Unsupported if the decoder's library is not installed.
    """
    library = decoder.library()
    names = list(names)
    stats = [(name, _stat_key(root / name)) for name in names]
    # -(-a // b) rounds up, so that at most READ_FILES are read; without files the step is 1.
    read = names[:: -(-len(names) // READ_FILES) or 1]
    contents = [edge_digest(root / name) for name in read]
    modules = decoders, image_headers, image_pixels, sys.modules[__name__]
    code = source_fingerprint(decoder), *map(inspect.getsource, modules)
    return fingerprint(stats, contents, decoder, library, code, size, *others)


def _stat_key(path: Path) -> tuple[int, int, int]:
    """Size in bytes, and times of the last modification and status change in nanoseconds."""
    # A program can set mtime, but not ctime. With ctime, as in git's index, a new file is noticed
    # even if it replaces a file of equal size and mtime.
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _images_below(folder: Path) -> list[Path]:
    """The image files in the folder and its subfolders, sorted, without hidden files."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.name[0] != "." and path.is_file()
    )
