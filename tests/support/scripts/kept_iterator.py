"""Epochs over an iterator that a class derived from DataLoader keeps, as that of ultralytics does;
its arguments are the numbers of workers of such loaders."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class SlowSamples(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor(float(index))


class Repeated:
    """A sampler without an end."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


class EndlessLoader(DataLoader):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self):
        self.iterator = self._get_iterator()


if __name__ == "__main__":
    for workers in map(int, sys.argv[1:]):
        loader = EndlessLoader(SlowSamples(), 4, shuffle=True, num_workers=workers)
        numbers = []
        for epoch in range(3):
            for batch in loader:
                time.sleep(0.001)
                numbers += batch.tolist()
            if epoch == 1:
                loader.reset()
        print(sorted(numbers) == sorted([*range(40)] * 3))
