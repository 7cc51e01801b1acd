"""Datasets of known cost: slow reads, costs with a heavy tail, Python code that holds the lock, and
a table."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch.utils.data import Dataset

from experiments.explain.delays import Delay, Kind

FEATURES = 16
CLASSES = 4
TAIL = 1.3
"""Shape of the Pareto distribution of costs; the variance of the distribution is infinite."""
MOST = 40.0
"""Largest cost relative to the least, so that one sample can't take most of an epoch."""

Sample = tuple[torch.Tensor, int]


class Delayed(Dataset[Sample]):
    """Samples that take `seconds` each, or on average if `heavy_tailed`."""

    def __init__(self, count: int, kind: Kind, seconds: float, heavy_tailed: bool = False) -> None:
        self.count, self.seconds, self.heavy_tailed = count, seconds, heavy_tailed
        self.kind: Kind = kind

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        Delay(self.kind, self.seconds * self.costs[index])()
        return torch.full((FEATURES,), float(index)), index % CLASSES

    @cached_property
    def costs(self) -> np.ndarray:
        """Cost of each sample relative to the mean."""
        if not self.heavy_tailed:
            return np.ones(self.count)
        costs = np.minimum(1 + np.random.default_rng(0).pareto(TAIL, self.count), MOST)
        return costs / costs.mean()


class Table(Dataset[Sample]):
    """Rows of an array in memory, with their labels."""

    def __init__(self, count: int, features: int) -> None:
        self.rows = np.random.default_rng(0).random((count, features), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Sample:
        return torch.from_numpy(self.rows[index]), index % CLASSES


class Drawn(Dataset[torch.Tensor]):
    """Samples that are drawn anew at each read, after a wait as for a disk."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.delay = count, Delay("sleep", seconds)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        self.delay()
        return torch.rand(FEATURES)
