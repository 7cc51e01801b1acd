"""Loops without a fault: healthy_loops.py <case>."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

IMAGES, TARGETS = torch.rand(512, 3, 24, 24), torch.randint(10, (512,))
LINEAR = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1728, 10))
WIDE = torch.nn.Sequential(
    torch.nn.Flatten(), torch.nn.Linear(1728, 1024), torch.nn.Linear(1024, 10)
)
CONVOLUTION = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 5), torch.nn.ReLU(), LINEAR[0], torch.nn.Linear(6400, 10)
)


class Scaled(Dataset):
    """Images that are computed for each sample."""

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, index):
        return (IMAGES[index] * 2 - 1).clamp(-1, 1), int(TARGETS[index])


class Named(Scaled):
    """The same with names."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return {"image": image, "target": target, "index": index}


class Stream(IterableDataset):
    """The images in their order."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        scaled = Scaled()
        return (scaled[index] for index in range(first, len(scaled), step))


class SlowStart(torch.nn.Module):
    """A model that waits once, as if its library had to be read from a disk."""

    def __init__(self):
        super().__init__()
        self.model, self.is_ready = LINEAR, False

    def forward(self, images):
        if not self.is_ready:
            time.sleep(0.5)
        self.is_ready = True
        return self.model(images)


TENSORS = TensorDataset(IMAGES, TARGETS)
CASES = {
    "tensors": (TENSORS, LINEAR, {"batch_size": 16}),
    "large batches": (TENSORS, LINEAR, {"batch_size": 128, "shuffle": True}),
    "single samples": (TENSORS, LINEAR, {"batch_size": 1}),
    "wide": (TENSORS, WIDE, {"batch_size": 32}),
    "convolution": (TENSORS, CONVOLUTION, {"batch_size": 32}),
    "slow start": (TENSORS, SlowStart(), {"batch_size": 16}),
    "scaled": (Scaled(), LINEAR, {"batch_size": 16}),
    "scaled wide": (Scaled(), WIDE, {"batch_size": 32, "shuffle": True}),
    "named": (Named(), LINEAR, {"batch_size": 16}),
    "stream": (Stream(), LINEAR, {"batch_size": 16}),
    "stream, convolution": (Stream(), CONVOLUTION, {"batch_size": 64}),
    "worker": (Scaled(), LINEAR, {"batch_size": 16, "num_workers": 1}),
    "worker, wide": (Scaled(), WIDE, {"batch_size": 32, "num_workers": 1}),
    "worker, convolution": (Scaled(), CONVOLUTION, {"batch_size": 32, "num_workers": 1}),
    "two workers": (Scaled(), LINEAR, {"batch_size": 16, "num_workers": 2}),
    "two workers, wide": (Scaled(), WIDE, {"batch_size": 32, "num_workers": 2, "shuffle": True}),
    "kept workers": (
        Scaled(),
        LINEAR,
        {"num_workers": 2, "batch_size": 8, "persistent_workers": True},
    ),
    "named worker": (Named(), WIDE, {"batch_size": 16, "num_workers": 1, "prefetch_factor": 4}),
    "spawned worker": (
        Scaled(),
        LINEAR,
        {"batch_size": 64, "num_workers": 1, "multiprocessing_context": "spawn"},
    ),
    "stream of workers": (Stream(), LINEAR, {"batch_size": 16, "num_workers": 2}),
    "any order": (Scaled(), CONVOLUTION, {"batch_size": 32, "num_workers": 2, "in_order": False}),
}

if __name__ == "__main__":
    # As many as cores that no worker uses.
    dataset, model, settings = CASES[sys.argv[1]]
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        for batch in DataLoader(dataset, **settings):
            image, target = (batch["image"], batch["target"]) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(image), target).backward()
            optimizer.step()
