"""`dataset=mydataset`: random arrays in one compressed npz file, created on first use."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt, Strict

from fastloop.core.atomic_files import write_beside
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.types import BadData, option
from fastloop.data.dataset_files import create_once

SEED = 0
"""The seed of the random arrays."""
OWN_DATA = "to read your own arrays, name your Dataset: dataset._target_=..."
"""Advice in the error message that appears if dataset.root holds other files."""


@dataclass(frozen=True)
class ArraySamples:
    """(float32 (*shape), int64) samples from two arrays in memory."""

    data: np.ndarray
    """float32 (samples, *shape)."""
    targets: np.ndarray
    """int64 (samples,)."""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, np.int64]:
        return torch.from_numpy(self.data[index]), self.targets[index]


@option
class MyDataset:
    """`count` float32 arrays from torch.rand with integer targets 0 to 9, in a file of
    np.savez_compressed."""

    label: ClassVar[str] = "mydataset"
    num_classes: ClassVar[int] = 10
    uint8_scale: ClassVar[None] = None
    gathers: ClassVar[bool] = True
    root: str
    """Path of the folder that contains the npz file."""
    count: PositiveInt
    """Number of samples."""
    shape: Annotated[tuple[PositiveInt, ...], Strict(False), Field(min_length=1)]
    """Shape of a sample's array."""

    @property
    def path(self) -> Path:
        """The path of the npz file."""
        size = "x".join(map(str, (self.count, *self.shape)))
        return Path(self.root) / f"mydataset-{size}.npz"

    def fetch(self) -> str:
        """A fingerprint of the npz file, which is created if it is missing.

        Raises BadData if it can't be written.
        """
        create_once(self.path, self._make, self.root, OWN_DATA)
        return fingerprint("mydataset", file_fingerprint(self.path))

    def files(self) -> list[Path]:
        """The npz file."""
        return [self.path]

    def open(self) -> ArraySamples:
        """Both arrays, decompressed into memory as a whole, because npz allows no partial reads.

        Raises BadData if the file is not an npz with `data` and `targets` of one length.
        """
        try:
            # The file is opened here, because np.load does not close a file that it fails to read.
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                data, targets = archive["data"], archive["targets"]
        except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise BadData(f"{self.path}: not an npz file with data and targets: {error}") from error
        if len(data) != len(targets):
            raise BadData(f"{self.path}: {len(data)} rows of data, {len(targets)} targets")
        return ArraySamples(data, targets)

    def _make(self) -> None:
        generator = torch.Generator().manual_seed(SEED)
        data = torch.rand(self.count, *self.shape, generator=generator).numpy()
        targets = torch.randint(self.num_classes, (self.count,), generator=generator).numpy()
        with write_beside(self.path) as path, path.open("wb") as file:
            np.savez_compressed(file, data=data, targets=targets)
