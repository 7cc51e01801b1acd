"""Stages of a user that take a known time, in a module of its own with few imports."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset, default_collate, get_worker_info

COUNT = 64


class Samples(Dataset):
    """Samples that take `sleep_s`; every `every`-th one of them, and the others no time."""

    def __init__(self, sleep_s: float = 0.0, every: int = 1, count: int = COUNT) -> None:
        self.sleep_s, self.every, self.count = sleep_s, every, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.sleep_s and index % self.every == 0:
            time.sleep(self.sleep_s)
        return torch.full((4, 4), float(index)), index % 4


class OpensAtFirst(Samples):
    """Samples that take no time but for the first one to be asked for, which opens their file."""

    def __init__(self, sleep_s: float, count: int = COUNT) -> None:
        super().__init__(count=count)
        self.opening_s, self.file = sleep_s, None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            time.sleep(self.opening_s)
            # As an open file, it can't be sent to another process.
            self.file = lambda: None
        return super().__getitem__(index)


class WithoutClasses(Samples):
    """Samples that no model takes. Only the first one can be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        if index:
            raise ValueError(f"sample {index} was read before the model was asked")
        return torch.zeros(4, 4), 0.5


class SlowLater(Samples):
    """Samples that take `sleep_s` after the first COUNT of them, which take no time."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index >= COUNT:
            time.sleep(self.sleep_s)
        return torch.full((4, 4), float(index)), index % 4


class SlowTransform:
    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __call__(self, sample):
        time.sleep(self.sleep_s)
        return sample


def slow_collate(samples, sleep_s):
    time.sleep(sleep_s)
    return default_collate(samples)


class SlowNet(torch.nn.Module):
    """A network whose forward pass takes `sleep_s`."""

    def __init__(self, input_shape, num_classes, sleep_s: float) -> None:
        super().__init__()
        self.sleep_s, self.layer = sleep_s, torch.nn.Linear(16, num_classes)

    def forward(self, batch):
        time.sleep(self.sleep_s)
        return self.layer(batch.flatten(1))


class StuckInWorker(Samples):
    """Samples one of which hangs in a DataLoader's worker, but not where the data is prepared."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if get_worker_info() and index == COUNT // 2:
            time.sleep(10_000)
        return super().__getitem__(index)
