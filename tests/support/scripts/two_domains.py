"""Two loaders side by side: labelled batches, and unlabelled ones that begin again at their end, as
in training of two networks against each other or on two domains."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Unlabelled(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), float(index))


def repeat(loader):
    while True:
        yield from loader


if __name__ == "__main__":
    pairs = TensorDataset(torch.rand(96, 4), torch.randint(2, (96,)))
    labelled = DataLoader(pairs, 8, shuffle=True)
    unlabelled = DataLoader(Unlabelled(), 4)
    model = torch.nn.Linear(4, 2)
    for _epoch in range(2):
        for (inputs, targets), others in zip(labelled, repeat(unlabelled), strict=False):
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            (loss + model(others).square().mean()).backward()
    print("trained")
