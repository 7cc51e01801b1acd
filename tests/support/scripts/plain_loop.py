"""A script with a loop over a slow dataset; its arguments are DataLoader's."""

from __future__ import annotations

import json
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES, BATCH = 24, 4


class Turn:
    """A transform, as an object of a class of its own."""

    def __call__(self, sample):
        time.sleep(0.0005)
        return sample.flip(0)


class SlowSamples(Dataset):
    """Samples of 2 ms, a quarter of which is a transform."""

    def __init__(self):
        self.transform = Turn()

    def __len__(self):
        return BATCHES * BATCH

    def __getitem__(self, index):
        time.sleep(0.0015)
        return self.transform(torch.arange(4.0) + index), index


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    loader = DataLoader(SlowSamples(), BATCH, shuffle=True, **settings)
    indices = []
    for _epoch in range(2):
        for samples, numbers in loader:
            time.sleep(0.001)
            assert samples[:, 3].long().equal(numbers)
            indices += numbers.tolist()
    print(sorted(indices) == sorted([*range(BATCHES * BATCH)] * 2), type(loader).__name__)
