"""`dataset=synthetic`: random samples of any count, shape and dtype, generated on access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt, Strict

from fastloop.core.fingerprints import fingerprint
from fastloop.core.types import option
from fastloop.options.dataset._rng import sample_generator

Integer = Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
Float = Literal["float16", "float32", "float64"]


@dataclass(frozen=True)
class SyntheticSamples:
    """(tensor of the shape and dtype, int) samples that depend only on seed and index.

    Floats are uniform in [0, 1), integers over the full range of their dtype.
    """

    count: int
    """Number of samples."""
    shape: tuple[int, ...]
    """Shape of a sample's array."""
    dtype: str
    """dtype of a sample's array."""
    num_classes: int
    """Labels are drawn from 0 to num_classes - 1."""
    seed: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # Iteration over an object without __iter__ ends at the first IndexError.
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = sample_generator(self.seed, index)
        data = torch.from_numpy(np.asarray(_draw(generator, self.shape, np.dtype(self.dtype))))
        return data, int(generator.integers(self.num_classes))


@option
class SyntheticDataset:
    """Random arrays and labels, generated on access: no file, no memory, any number of samples."""

    label: ClassVar[str] = "synthetic"
    uint8_scale: ClassVar[None] = None
    count: PositiveInt
    """Number of samples."""
    shape: Annotated[tuple[PositiveInt, ...], Strict(False)]
    """Shape of a sample's array."""
    dtype: Literal["bool", Integer, Float]
    """dtype of a sample's array."""
    num_classes: PositiveInt
    """Labels are drawn from 0 to num_classes - 1."""
    seed: Annotated[int, Field(ge=0, lt=2**64)]
    """Seed of the samples, which is independent of the trial's seed."""

    def fetch(self) -> str:
        """A fingerprint of the settings and of the version of numpy, which draws the samples."""
        settings = (self.count, self.shape, self.dtype, self.num_classes, self.seed)
        return fingerprint("synthetic", settings, np.__version__)

    def open(self) -> SyntheticSamples:
        """The samples, each generated on access."""
        return SyntheticSamples(self.count, self.shape, self.dtype, self.num_classes, self.seed)


def _draw(generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        # numpy's generators draw no float16.
        draw_dtype = np.float64 if dtype == np.float64 else np.float32
        return np.asarray(generator.random(shape, dtype=draw_dtype)).astype(dtype, copy=False)
    if dtype.kind == "b":
        return np.asarray(generator.integers(2, size=shape, dtype=np.bool_))
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype=dtype.type, endpoint=True)
