"""Training and evaluation over the same DataLoader, at two places; training takes longer steps.

It does so for each of its arguments: `workers` gives the loader some, `fail` ends the script."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def evaluate(batches):
    for _ in batches:
        time.sleep(0.0005)


if __name__ == "__main__":
    unused = DataLoader(TensorDataset(torch.rand(8, 8)), 4)
    for word in sys.argv[1:]:
        settings = {"num_workers": 2, "persistent_workers": True} if word == "workers" else {}
        loader = DataLoader(TensorDataset(torch.rand(64, 8)), 4, **settings)
        for _epoch in range(2):
            if word == "fail":
                raise RuntimeError("too early")
            for _ in loader:
                time.sleep(0.004)
            evaluate(loader)
