"""A script that spawns its own processes, each of which trains with a loader of one worker."""

from __future__ import annotations

import time

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.tensor([float(index)])


def train(rank, settings):
    loader = DataLoader(Numbers(), 4, **settings)
    model = torch.nn.Linear(1, 1)
    total = sum(model(batch).sum().isfinite().item() for batch in loader)
    assert total == 12, rank


if __name__ == "__main__":
    mp.spawn(train, ({"num_workers": 1},), nprocs=2)
    print("trained")
