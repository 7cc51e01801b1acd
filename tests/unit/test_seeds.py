"""Seeds of epochs."""

from __future__ import annotations

import itertools

import torch

from fastloop import FastLoader
from fastloop.core.index_batches import epoch_indices
from fastloop.core.seeds import epoch_seed, mix_seed
from fastloop.options.order.random import RandomOrder


def test_seeds_of_epochs_differ_and_fit_everywhere():
    pairs = list(itertools.product([*range(40), 10_000, 2**64 - 1], range(40)))
    seeds = [epoch_seed(seed, epoch) for seed, epoch in pairs]
    assert len(set(seeds)) == len(pairs)
    assert all(epoch_seed(seed, 0) == seed for seed, _ in pairs)
    assert all(0 <= epoch_seed(seed, epoch) < 2**63 for seed, epoch in pairs if epoch)
    assert mix_seed(1, 2) != mix_seed(2, 1)


def test_seeds_of_epochs_stay_the_same_from_version_to_version():
    assert [epoch_seed(0, 1), epoch_seed(1, 1)] == [8482747048757055080, 3655258491981632013]


def test_seed_and_epoch_are_no_sum():
    for seed, epoch in [(0, 1), (3, 2), (7, 1)]:
        loaders = [
            FastLoader(torch.arange(50), 50, shuffle=True, seed=number)
            for number in (seed, seed + epoch)
        ]
        loaders[0].set_epoch(epoch)
        first, other = (next(iter(loader)).tolist() for loader in loaders)
        assert first != other
        order = RandomOrder()
        assert epoch_indices(order, 50, seed, epoch).tolist() == first
        assert epoch_indices(order, 50, seed + epoch, 0).tolist() == other
