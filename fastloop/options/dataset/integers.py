"""`dataset=integers`: plain integers, with which only the loop itself costs time."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt

from fastloop.core.fingerprints import fingerprint
from fastloop.core.types import option


@option
class Integers:
    """int64 scalars 0, 1, 2, …: each sample is its own index, and there are no labels."""

    label: ClassVar[str] = "integers"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    gathers: ClassVar[bool] = True
    """Reading a sample copies a row of memory, so gathering rows is the limit to compare with."""
    count: PositiveInt
    """Number of samples."""

    def fetch(self) -> str:
        """A fingerprint of the count."""
        return fingerprint("integers", self.count)

    def open(self) -> torch.Tensor:
        """An int64 tensor (count,) with the samples as elements."""
        return torch.arange(self.count)
