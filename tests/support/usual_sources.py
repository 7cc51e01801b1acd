"""Datasets as people's programs have them, in a light module that worker processes import."""

from __future__ import annotations

from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Pair = namedtuple("Pair", "image label")


class Samples(Dataset):
    """`make(index)` for each index."""

    def __init__(self, make, count: int = 10) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return self.make(index)


class Listed(Samples):
    """Samples that may also be asked for by a list of indices."""

    def __getitem__(self, index):
        return np.array(index) * 2.0 if isinstance(index, list) else index * 2.0


class Fetched(Samples):
    def __getitems__(self, indices: list[int]) -> list:
        return [self.make(index) for index in indices]


class Stream(IterableDataset):
    """The samples of this worker, as DataLoader's documentation divides them."""

    def __init__(self, make, count: int = 10) -> None:
        self.make, self.count = make, count

    def __iter__(self):
        worker = get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return map(self.make, range(start, self.count, step))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.count


def pair(index: int):
    return torch.full((3,), float(index)), index


def mapping(index: int):
    return {"x": np.full(2, index, np.float32), "more": (index, float(index))}


def named(index: int):
    return Pair(torch.full((2,), index), index)


def texts(index: int):
    return f"sample {index}", index


def optional(index: int):
    return None if index % 3 == 0 else torch.tensor(index)


def without_none(samples: list):
    return torch.stack([sample for sample in samples if sample is not None])
