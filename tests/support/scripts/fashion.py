"""The usual example's shape: argparse, a transform, a small network, a Trainer with a loader class
of its own that moves batches to the device, as libraries on top of torch have it."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clothes(Dataset):
    """Images like Fashion-MNIST's, with a transform as torchvision's datasets keep it."""

    def __init__(self, count, transform):
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        self.targets = rng.integers(0, 10, count)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), int(self.targets[index])


class DeviceLoader(DataLoader):
    """Yields batches on the device, one batch ahead."""

    def __init__(self, *args, device, **settings):
        super().__init__(*args, **settings)
        self.device = device

    def __iter__(self):
        ahead = None
        for batch in super().__iter__():
            if ahead is not None:
                yield ahead
            ahead = [tensor.to(self.device) for tensor in batch]
        if ahead is not None:
            yield ahead


class Trainer:
    def __init__(self, model, settings):
        self.model, self.settings = model, settings
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def fit(self, loader):
        for _epoch in range(self.settings.epochs):
            for images, targets in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(images), targets)
                loss.backward()
                self.optimizer.step()
        return loss.item()


class ToTensor:
    """As torchvision's transform."""

    def __call__(self, image):
        return torch.from_numpy(image).float().div(255).unsqueeze(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, required=True)
    settings = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 8, 3, 2), nn.Flatten(), nn.LazyLinear(10)
    )
    loader = DeviceLoader(
        Clothes(256, ToTensor()), settings.batch_size, shuffle=True, device=torch.device("cpu")
    )
    model(next(iter(loader))[0])
    loss = Trainer(model, settings).fit(loader)
    print(f"{parser.prog}: loss {loss:.6f} after {settings.epochs} epochs")
