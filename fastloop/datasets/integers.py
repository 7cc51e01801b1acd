"""`dataset=integers`: seed 004's 300,000 integers, with which only the loop itself costs time."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt

from fastloop.files import fingerprint
from fastloop.types import option


@option
class Integers:
    """int64 scalars, each its own index."""

    label: ClassVar[str] = "integers"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    count: PositiveInt

    def fetch(self) -> str:
        """A fingerprint of their number."""
        return fingerprint("integers", self.count)

    def open(self) -> torch.Tensor:
        """One int64 tensor (count,), as 004 gives it to the DataLoader: a sample is an element."""
        return torch.arange(self.count)
