"""A script over an IterableDataset that its workers share; its arguments are their numbers."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

COUNT = 90


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, COUNT, step):
            time.sleep(0.001)
            yield torch.tensor(number)


if __name__ == "__main__":
    for workers in map(int, sys.argv[1:]):
        loader = DataLoader(Stream(), batch_size=4, num_workers=workers)
        numbers = [number for _ in range(2) for batch in loader for number in batch.tolist()]
        print(sorted(numbers) == sorted([*range(COUNT)] * 2))
