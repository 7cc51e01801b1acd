"""Loaders of one's own that several ranks call, and each shares out in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.utils.data import DataLoader, DistributedSampler, Subset

from fastloop.torch_loader import torch_epochs
from fastloop.types import option


def chosen(dataset, indices, batch_size):
    return DataLoader(Subset(dataset, indices), batch_size, shuffle=True)


def everything(dataset, batch_size):
    return DataLoader(dataset, batch_size, shuffle=True)


def every_other(dataset, batch_size, rank, world_size):
    """Complete, with nothing added: of 33 samples two ranks have 17 and 16."""
    return chosen(dataset, range(rank, len(dataset), world_size), batch_size)


def lopsided(dataset, batch_size, rank, world_size):
    """All but a few samples to the first."""
    few = 2 * (world_size - 1)
    parts = [range(few, len(dataset)), *(range(2 * one, 2 * one + 2) for one in range(few // 2))]
    return chosen(dataset, parts[rank], batch_size)


def in_turns(dataset, batch_size, rank, world_size, epoch):
    """Another rank has the most in every epoch."""
    return lopsided(dataset, batch_size, (rank + epoch) % world_size, world_size)


def the_first_alone(dataset, batch_size, rank):
    """All of it by rank 0, nothing by the others."""
    return [] if rank else DataLoader(dataset, batch_size)


def by_torch(dataset, batch_size, num_workers):
    """As in a script for torchrun, with a seed of its own."""
    sampler = DistributedSampler(dataset, seed=99)
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=num_workers)


def over(dataset, sampler, batch_size, num_workers, persistent_workers, drop_last):
    return DataLoader(
        dataset,
        batch_size,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
        drop_last=drop_last,
    )


def own_data():
    """Brings 33 samples, as many to each rank; only where there is a group."""
    sampler = DistributedSampler(COUNTED, shuffle=False)
    return DataLoader(COUNTED, 8, sampler=sampler)


COUNTED = [(torch.tensor([float(index)]), index % 4) for index in range(33)]


@dataclass(frozen=True)
class Part:
    """Every index to the first rank but two, which are the other's."""

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
class ByProtocol:
    """A loader that is an option, and shares out in its own way."""

    store = None

    def open(self, prepared, plan):
        return torch_epochs(prepared.dataset.open(), replace(plan, order=Part(plan.rank)))
