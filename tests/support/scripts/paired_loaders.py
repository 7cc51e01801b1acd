"""A loop over two DataLoaders at once, which differ by nothing but their data; and one function
that trains and validates."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

photos = DataLoader(TensorDataset(torch.rand(60, 4)), batch_size=2)
paintings = DataLoader(TensorDataset(torch.rand(60, 4)), batch_size=2)
for (photo,), (painting,) in zip(photos, paintings, strict=True):
    (photo + painting).sum()
    time.sleep(0.002)


def run(loader):
    for (sample,) in loader:
        sample.sum()
        time.sleep(0.002)


parts = {
    number: DataLoader(TensorDataset(torch.rand(number, 4)), batch_size=2) for number in (80, 40)
}
for _ in range(2):
    for part in parts.values():
        run(part)
