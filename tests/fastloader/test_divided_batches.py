"""Batches of slow columns, of which each thread makes a part."""

from __future__ import annotations

import threading
import time

import numpy as np
import os_threads
import pytest
import torch

from fastloop import FastLoader
from fastloop.fastloader.columns.column import SampleSpec


class SlowNumbers:
    """A slow column of the numbers 0, 1, 2, ..., which notes the threads that fill it, and how many
    threads torch has there.

    together: the first batch of 8 needs two threads at once. broken: numbers that raise an error.
    """

    slow, spec = True, SampleSpec(torch.int64, ())

    def __init__(self, *, together: bool = False, broken: tuple[int, ...] = ()) -> None:
        self.barrier = threading.Barrier(2) if together else None
        self.broken, self.threads, self.torch_threads = broken, set(), set()

    def __len__(self) -> int:
        return 24

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        self.threads.add(threading.get_ident())
        self.torch_threads.add(torch.get_num_threads())
        if self.barrier and (0 in indices or 4 in indices):
            self.barrier.wait(60)
        for index in indices:
            if index in self.broken:
                raise ValueError(f"number {index} is broken")
        out.view(np.int64)[:, 0] = indices


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_batch_of_slow_samples_is_divided_among_threads(transform):
    column = SlowNumbers(together=True)
    loader = FastLoader(column, 8, num_threads=2, transform=transform)
    assert torch.cat(list(loader)).tolist() == list(range(24))
    assert len(column.threads) == 2
    assert column.torch_threads == {1}
    assert threading.get_ident() not in column.threads


@pytest.mark.parametrize("transform", [None, lambda batch: batch])
def test_an_epoch_has_no_more_threads_than_num_threads_and_ends_them(transform):
    before = os_threads.count_threads()
    running = iter(FastLoader(SlowNumbers(), 4, num_threads=3, transform=transform))
    next(running)
    time.sleep(0.05)  # a thread too many has the time to start
    assert os_threads.count_threads() <= before + 3
    del running
    assert os_threads.falls_to(before)


def add_noise(batch: torch.Tensor) -> torch.Tensor:
    """Draws from numpy's global generator, which threads would have to share."""
    return batch + np.random.random()


def test_threads_gather_for_a_transform_that_the_loop_has_to_apply():
    def apply(batch: torch.Tensor) -> torch.Tensor:
        appliers.add(threading.get_ident())
        return add_noise(batch)

    column, appliers = SlowNumbers(), set()
    loader = FastLoader(column, 4, seed=1, num_threads=2, transform=apply)
    with pytest.warns(UserWarning, match="global random generators of numpy"):
        first = torch.cat(list(loader))
    appliers.clear()
    second = torch.cat(list(loader))
    here = threading.get_ident()
    assert here not in column.threads
    assert appliers == {here}
    alone = FastLoader(SlowNumbers(), 4, seed=1, num_threads=0, transform=add_noise)
    assert torch.equal(first, torch.cat(list(alone)))
    assert torch.equal(second, torch.cat(list(alone)))
    assert not torch.equal(first, second)


def test_error_of_the_first_broken_part_takes_the_place_of_its_batch():
    # Numbers 2 and 5 are in different parts of the first batch.
    loader = FastLoader(SlowNumbers(broken=(2, 5)), 8, num_threads=2)
    running = iter(loader)
    with pytest.raises(ValueError, match="number 2 is broken"):
        next(running)
    assert [batch.tolist() for batch in running] == [[*range(8, 16)], [*range(16, 24)]]


@pytest.mark.parametrize("num_threads", [2, 5])
def test_parts_of_other_sizes_and_cheap_columns_make_the_same_batches(num_threads):
    batches = [[], [3], [5, 4], [0, 23, 7, 7, 1], [*range(24)]]
    tree = SlowNumbers(), torch.arange(24) * 10
    loader = FastLoader(tree, batch_sampler=batches, num_threads=num_threads)
    for (numbers, tens), expected in zip(loader, batches, strict=True):
        assert numbers.tolist() == expected
        assert tens.tolist() == [10 * each for each in expected]
