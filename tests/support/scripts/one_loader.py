"""Training and evaluation over the same DataLoader, at two places; training takes longer steps."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def evaluate(batches):
    for _ in batches:
        time.sleep(0.0005)


if __name__ == "__main__":
    settings = {"num_workers": 2, "persistent_workers": True} if "workers" in sys.argv else {}
    loader = DataLoader(TensorDataset(torch.rand(64, 8)), 4, **settings)
    unused = DataLoader(TensorDataset(torch.rand(8, 8)), 4)
    for _epoch in range(2):
        if "fail" in sys.argv:
            raise RuntimeError("too early")
        for _ in loader:
            time.sleep(0.004)
        evaluate(loader)
