"""A dataset decoded by several processes, in a module of its own with few imports."""

from __future__ import annotations

import time

import torch


class SlowSamples:
    """Samples that take long enough for decoding in several processes."""

    def __len__(self):
        return 3000

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((2, 2), float(index)), index


class SlowDataset:
    label, num_classes, uint8_scale = "slow", None, None

    def fetch(self):
        return "slow-1"

    def open(self):
        return SlowSamples()
