"""The workloads of factors.py: rows in memory, with FastLoader's rivals and the required
factors."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from experiments.peers.workloads import FILL_BYTE

LENGTH = 1024
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Case:
    """A workload, its rivals, and the factors by which FastLoader must be faster."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    rivals: tuple[str, ...]
    least: float
    least_dataloader: float = 0
    """The required factor over DataLoader alone; 0: none is required."""
    least_plain: float = 0
    """The required factor over the plain gather, which needs a C compiler; 0: it is not
    measured."""
    converts: bool = False
    """True if batches of uint8 rows are converted to normalized floats."""
    hwc: bool = False
    """True if rows are (height, width, channels), and are converted to (channels, height, width)
    with a mean for each channel."""
    tokens: int = 0
    """Number of tokens, of which rows are random windows; 0: rows are stored."""
    label: bool = False

    @property
    def batches(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.count // self.batch_size)


CASES = {
    "A: 60,000 x (1, 28, 28) float32": Case(
        60_000, (1, 28, 28), "float32", 256, ("DataLoader", "grain", "turboloader"), 2, label=True
    ),
    "B: uint8 to normalized float32": Case(
        60_000, (1, 28, 28), "uint8", 256, ("DataLoader", "grain"), 3, converts=True, label=True
    ),
    "D: 3 x 224 x 224 uint8": Case(
        *(6_144, (3, 224, 224), "uint8", 256, ("DataLoader", "grain", "turboloader"), 2.5),
        least_plain=1.4,
        label=True,
    ),
    "E: 300,000 integers": Case(300_000, (), "int64", 300, ("numpy loop", "DataLoader"), 2, 6),
    "rows of 16 bytes": Case(
        2_000_000, (4,), "float32", 1024, ("DataLoader", "grain", "turboloader"), 3
    ),
    "table: 30 floats and a label": Case(
        1_000_000, (30,), "float32", 1024, ("DataLoader", "grain", "turboloader"), 2.5, label=True
    ),
    "64 x 64 x 3 HWC to CHW float32": Case(
        20_000, (64, 64, 3), "uint8", 256, ("DataLoader",), 2.5, converts=True, hwc=True, label=True
    ),
    "tokens: windows of 1,024": Case(
        32_000, (LENGTH,), "uint16", 32, ("nanoGPT", "turboloader"), 3, tokens=10**9
    ),
}


@cache
def source(case: Case) -> tuple[torch.Tensor, ...]:
    """The rows, and labels if there are any. For tokens: the one-dimensional array."""
    if case.tokens:
        return (torch.from_numpy(np.full(case.tokens, FILL_BYTE, np.uint16)),)
    if not case.shape:
        return (torch.arange(case.count),)
    rows = torch.empty((case.count, *case.shape), dtype=getattr(torch, case.dtype))
    rows.view(-1).view(torch.uint8).fill_(FILL_BYTE)
    return (rows, torch.arange(case.count)) if case.label else (rows,)


def tree(case: Case) -> Any:
    """FastLoader's source."""
    from fastloop import Windows, converted

    rows, *labels = source(case)
    column: Any = rows
    if case.tokens:
        column = Windows(rows.numpy(), LENGTH, count=case.count)
    elif case.hwc:
        column = converted(rows, mean=MEAN, std=STD, source_layout="HWC")
    elif case.converts:
        column = converted(rows, mean=0.5, std=0.25)
    return (column, *labels) if labels else column
