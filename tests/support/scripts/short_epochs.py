"""Ten short epochs over samples of each kind; its arguments: the number of workers, the kinds."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

BATCHES, BATCH = 8, 4


def spend(seconds):
    """Compute for that long."""
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        pass


class Plain(Dataset):
    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, index):
        spend(0.0004)
        return torch.tensor(float(index))


class Drawn(Plain):
    def __getitem__(self, index):
        return super().__getitem__(index) + torch.rand(())


class OwnGenerator(Plain):
    def __init__(self):
        self.crop = Cropping()


class Cropping:
    def __init__(self):
        self.generator = torch.Generator()


class Texts(Plain):
    def __getitem__(self, index):
        return super().__getitem__(index), "text"


class Stream(IterableDataset):
    """A stream that is not divided among workers."""

    num_shards = None

    def __iter__(self):
        for index in range(BATCHES * BATCH):
            time.sleep(0.002)
            yield index


class Shards(Stream):
    """A stream of two files."""

    num_shards = 2


class Divided(IterableDataset):
    """A stream that each worker reads a part of."""

    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(first, BATCHES * BATCH, step):
            time.sleep(0.002)
            yield index


if __name__ == "__main__":
    for kind in sys.argv[2:]:
        dataset = globals()[kind]()
        for _epoch in range(10):
            for _ in DataLoader(dataset, BATCH, num_workers=int(sys.argv[1])):
                spend(0.002)
