"""The data of the workloads of run.py, for FastLoader and DataLoader: rows with their labels, which
are shuffled."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILL_BYTE = 63
"""The value of every byte of the rows. They are written because memory is allocated at the first
write; four such bytes are a normal float."""


@dataclass(frozen=True)
class Workload:
    """Rows in memory, or in a mapped file."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    file: str = ""
    by_numpy: bool = False
    """True: numpy allocates the rows, and asks the system for pages of 2 MiB; torch gets pages of 4
    KiB."""

    @property
    def source_nbytes(self) -> int:
        """Bytes of the source's own memory; mapped pages belong to the page cache."""
        row = np.dtype(self.dtype).itemsize * int(np.prod(self.shape))
        return self.count * (8 if self.file else row + 8)

    def source(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows and their labels."""
        labels = torch.arange(self.count)
        if self.file:
            return torch.from_numpy(np.load(self.file, mmap_mode="c")), labels
        shape = (self.count, *self.shape)
        if self.by_numpy:
            rows = torch.from_numpy(np.empty(shape, self.dtype))
            labels = torch.from_numpy(np.arange(self.count))
        else:
            rows = torch.empty(shape, dtype=getattr(torch, self.dtype))
        rows.view(-1).view(torch.uint8).fill_(FILL_BYTE)
        return rows, labels

    def write(self) -> None:
        """Write the file, which is then in the page cache."""
        shape = (self.count, *self.shape)
        rows = np.lib.format.open_memmap(self.file, "w+", self.dtype, shape)
        for start in range(0, self.count, 1000):
            rows[start : start + 1000] = FILL_BYTE
        rows.flush()


@dataclass(frozen=True)
class EncodedFiles:
    """Images in files, decoded and resized by FastLoader."""

    folder: str
    size: tuple[int, int]
    count: int
    batch_size: int

    @property
    def source_nbytes(self) -> int:
        """Bytes of the source's own memory: that of the labels."""
        return 8 * self.count

    def source(self) -> tuple[Any, torch.Tensor]:
        """The column of images and their labels."""
        from fastloop import Images

        paths = sorted(map(str, Path(self.folder).rglob("*.jpg")))
        return Images(paths, size=self.size), torch.arange(len(paths))


ROWS = Workload(60_000, (1, 28, 28), "float32", 256)
NORMALIZED = Workload(60_000, (1, 28, 28), "uint8", 256)
MAPPED = Workload(10_240, (3, 224, 224), "uint8", 256)
NUM_JPEGS = 4000


def outputs_folder() -> Path:
    """The folder for all files of the workloads, which is created if it is missing."""
    folder = Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_file(workload: Workload) -> Workload:
    """The workload in a file, which is written if it is missing."""
    path = outputs_folder() / f"{workload.count}-peers-mapped.npy"
    mapped = replace(workload, file=str(path))
    if not path.exists():
        mapped.write()
    return mapped


def jpeg_files() -> EncodedFiles:
    """The files of the workload `jpeg`, which are written if they are missing."""
    from experiments.peers.dataset.jpegs import Jpegs

    root = str(outputs_folder() / "data")
    jpegs = Jpegs(root=root, count=NUM_JPEGS, crop=(256, 256), size=(224, 224))
    jpegs.fetch()
    return EncodedFiles(str(jpegs.photos.folder), jpegs.size, jpegs.count, 64)
