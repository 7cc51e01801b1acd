"""`dataset=slow_reads`: random rows, each of which arrives after a latency, as from a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt

from fastloop.core.fingerprints import fingerprint
from fastloop.core.spans import pause
from fastloop.core.types import option
from fastloop.options.dataset._rng import sample_generator

SEED = 0
"""The seed of the random rows."""
NUM_CLASSES = 10


@dataclass(frozen=True)
class LateRows:
    """(uint8 (row_bytes,), int) samples; each access waits for the latency first."""

    count: int
    """Number of samples."""
    row_bytes: int
    """Size of a sample in bytes."""
    latency_ms: float
    """Time in milliseconds from asking for a sample until it arrives."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        # The wait uses no CPU time and does not hold the interpreter's lock, so the waits of
        # several threads overlap.
        pause(self.latency_ms / 1e3)
        generator = sample_generator(SEED, index)
        row = torch.from_numpy(np.frombuffer(generator.bytes(self.row_bytes), np.uint8).copy())
        return row, int(generator.integers(NUM_CLASSES))


@option
class SlowReads:
    """Random bytes that arrive `latency_ms` after they were asked for.

    A loader hides the latency if it asks for many samples at a time. A store has no latency, so
    only loaders that read the dataset itself are comparable.
    """

    label: ClassVar[str] = "slow_reads"
    num_classes: ClassVar[int] = NUM_CLASSES
    uint8_scale: ClassVar[None] = None
    count: PositiveInt
    """Number of samples."""
    row_bytes: PositiveInt
    """Size of a sample in bytes."""
    latency_ms: Annotated[float, Field(ge=0, le=1e4)]
    """Time in milliseconds from asking for a sample until it arrives."""

    def fetch(self) -> str:
        """A fingerprint of the settings and of the version of numpy, which draws the samples."""
        settings = (self.count, self.row_bytes, self.latency_ms)
        return fingerprint("slow_reads", settings, np.__version__)

    def open(self) -> LateRows:
        """The samples, each generated on access."""
        return LateRows(self.count, self.row_bytes, self.latency_ms)
