"""User loaders called by several ranks; each divides the samples in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from fastloop.core.types import option
from fastloop.data.torch_epochs import torch_epochs


def load_subset(dataset, indices, batch_size):
    return DataLoader(Subset(dataset, indices), batch_size, shuffle=True)


def load_everything(dataset, batch_size):
    return DataLoader(dataset, batch_size, shuffle=True)


def interleave(dataset, batch_size, rank, world_size):
    """Every world_size-th sample without fillers: of 33 samples two ranks get 17 and 16."""
    return load_subset(dataset, range(rank, len(dataset), world_size), batch_size)


def load_unevenly(dataset, batch_size, rank, world_size):
    """All samples but two per other rank on the first rank."""
    rest = 2 * (world_size - 1)
    parts = [range(rest, len(dataset)), *(range(start, start + 2) for start in range(0, rest, 2))]
    return load_subset(dataset, parts[rank], batch_size)


def alternating(dataset, batch_size, rank, world_size, epoch):
    """The rank with most samples changes in every epoch."""
    return load_unevenly(dataset, batch_size, (rank + epoch) % world_size, world_size)


def first_rank_only(dataset, batch_size, rank):
    """All samples on rank 0, none on the others."""
    return [] if rank else DataLoader(dataset, batch_size)


def distributed_sampler(dataset, batch_size, num_workers):
    """A DistributedSampler as in a script for torchrun, with its own seed."""
    sampler = DistributedSampler(dataset, seed=99)
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)


def with_sampler(dataset, sampler, batch_size, num_workers, persistent_workers, drop_last):
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        drop_last=drop_last,
    )


def with_data():
    """Load 33 samples that the loader brings itself; needs a process group."""
    sampler = DistributedSampler(SAMPLES, shuffle=False)
    return DataLoader(SAMPLES, 8, sampler=sampler)


SAMPLES = [(torch.tensor([float(index)]), index % 4) for index in range(33)]


@dataclass(frozen=True)
class UnevenOrder:
    """An order that gives all indices but two to rank 0."""

    rank: int
    complete = False

    def length(self, num_samples):
        return 2 if self.rank else num_samples - 2

    def pieces(self, num_samples, seed, epoch):
        yield (
            torch.arange(num_samples - 2, num_samples)
            if self.rank
            else torch.arange(num_samples - 2)
        )


@option
class LoaderOption:
    """A loader option with an uneven order."""

    store = None

    def open(self, prepared, plan):
        return torch_epochs(prepared.dataset.open(), replace(plan, order=UnevenOrder(plan.rank)))
