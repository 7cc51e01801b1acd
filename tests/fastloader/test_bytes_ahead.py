"""Threads make batches ahead of the loop, of AHEAD_BYTES together, whatever their sizes become."""

from __future__ import annotations

import threading
import time
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from fastloop import FastLoader
from fastloop.fastloader.bytes_ahead import (
    AHEAD_BYTES,
    MOST_PARTS,
    BytesAhead,
    UsualSize,
    count_nbytes,
    estimate_nbytes,
)
from fastloop.fastloader.thread_map import map_ahead

MIB = 1 << 20
Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("batches", "nbytes"),
    [
        ([{"x": torch.zeros(2, 3), "y": np.zeros(4)}, b"four", "ten letter"], 24 + 32 + 4 + 10),
        ([torch.zeros(2, 3).to_sparse()], None),
        ([np.array([{}])], None),
        ([object()], None),
    ],
)
def test_bytes_of_batches_are_counted_if_they_are_known(batches, nbytes):
    assert count_nbytes(batches) == nbytes


def to_parts(batch: Any) -> Any:
    """The same bytes in all kinds of nodes."""
    return {"x": [batch, (batch, Pair(batch, batch))]}


@pytest.mark.parametrize(
    ("batches", "nbytes"),
    [
        (to_parts(torch.zeros(2, 3)), 4 * 24),
        ((["four"] * 32, torch.zeros(1)), 4 * 32 + 4),
        (["ten letter"] * 8192, 10 * 8192),
        ([[torch.zeros(1)] * 4] * 640, 4 * 2560),
        ((torch.zeros(2, 3).to_sparse(), object(), np.array([{}]), torch.zeros(1)), 4),
        ([], 0),
        (["four"] * 1000, 4 * 1000),
        ((torch.zeros(MIB), [["four"] * 40] * 20), 4 * MIB + 4 * 800),
        (([["four"] * 40] * 20, {"image": torch.zeros(MIB)}), 4 * MIB + 4 * 800),
        ({"image": torch.zeros(MIB)} | {f"{n}": b"four" for n in range(250)}, 4 * MIB + 4 * 250),
        ([[[[torch.zeros(8)] * 3] * 100] * 100] * 50, 32 * 3 * 500_000),
    ],
    ids=[
        *("nodes", "exact", "texts", "nested", "unknown", "nothing", "uneven"),
        *("image_first", "image_below", "image_among_many", "deep"),
    ],
)
def test_bytes_are_estimated_of_any_batch(batches, nbytes):
    assert estimate_nbytes(batches) == nbytes


def test_an_estimate_looks_at_few_parts():
    """A list of lists of lists has as many parts as a batch can have."""
    seen = []

    class Seen(dict):
        def values(self):
            seen.append(self)
            return super().values()

    estimate_nbytes([[[Seen()] * 100] * 100] * 100)
    assert 0 < len(seen) < MOST_PARTS


class Failing(torch.Tensor):
    """A tensor that does not tell its size."""

    def numel(self) -> int:
        raise RuntimeError("no size")


def make_failing(number: int) -> Any:
    return torch.zeros(2).as_subclass(Failing)


def test_a_result_that_fails_to_tell_its_size_is_delivered():
    limit = BytesAhead(1, UsualSize())
    assert len(list(map_ahead(make_failing, range(9), 2, 2, limit=limit))) == 9


class Ahead:
    """The bytes that have been made and not delivered, now and at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.nbytes = self.most = 0

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes
            self.most = max(self.most, self.nbytes)


class Growing(Dataset):
    """Samples that wait, of `size(index)` bytes each."""

    def __init__(self, count: int, size: Callable[[int], int]) -> None:
        self.count, self.size, self.ahead = count, size, Ahead()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.03)
        self.ahead.add(self.size(index))
        # Memory that is not touched takes no room.
        return torch.empty(self.size(index), dtype=torch.uint8)


def most_ahead(loader: FastLoader, seconds: float = 0.0) -> float:
    """The most MiB that were ahead of a loop in an epoch."""
    dataset: Any = loader.dataset
    ahead = dataset.ahead = Ahead()
    for batch in loader:
        ahead.add(-batch.numel())
        time.sleep(seconds)
    return ahead.most / MIB


@pytest.mark.heavy
@pytest.mark.parametrize("settings", [{"num_threads": 8}, {}], ids=str)
def test_batches_that_grow_slowly_stay_within_the_limit(settings):
    dataset = Growing(120, lambda index: MIB + index * MIB // 8)
    loader = FastLoader(dataset, None, thread_safe=True, **settings)
    # The loop is slower than the threads, which are as far ahead as they may be. Each of those that
    # were asked for makes a batch in any case.
    most = most_ahead(loader, 0.02)
    assert most <= max(64, 16 * settings.get("num_threads", 0)) + 32


@pytest.mark.heavy
@pytest.mark.parametrize("in_order", [True, False])
def test_batches_that_grow_at_once_are_as_many_as_threads_and_fewer_in_later_epochs(in_order):
    dataset = Growing(90, lambda index: MIB // 4 if index < 30 else 16 * MIB)
    # 16 threads read samples that wait, two ahead each: 512 MiB.
    loader = FastLoader(dataset, None, thread_safe=True, in_order=in_order)
    assert most_ahead(loader, 0.01) <= 16 * 16 + 64
    dataset.size = lambda index: 16 * MIB
    # One that the loop asks for, and, on a busy machine, one that it has got and not counted yet.
    assert most_ahead(loader, 0.01) <= 64 + 16 + 16


def test_a_few_large_batches_do_not_stop_the_threads():
    """Each takes a thread, and the small ones are made meanwhile."""
    made: list[int] = []

    def make(number: int) -> torch.Tensor:
        made.append(number)
        return torch.empty(40 * MIB if number % 20 == 10 else MIB, dtype=torch.uint8)

    limit = BytesAhead(1, UsualSize())
    results = map_ahead(make, range(60), 4, 8, limit=limit)
    for number, result in enumerate(results):
        time.sleep(0.005)
        assert len(result) == 40 * MIB if number % 20 == 10 else MIB
        # 64 MiB hold a large one and 20 small ones.
        if number == 5:
            assert len(made) > 20
    assert sorted(made) == [*range(60)]


@pytest.mark.heavy
def test_given_numbers_of_batches_ahead_are_kept():
    dataset = Growing(24, lambda index: 16 * MIB)
    loader = FastLoader(dataset, None, thread_safe=True, num_threads=4, prefetch_factor=3)
    assert most_ahead(loader, 0.1) > AHEAD_BYTES / MIB


def test_threads_that_wait_for_room_end_with_the_epoch():
    def make(number: int) -> torch.Tensor:
        return torch.empty(AHEAD_BYTES, dtype=torch.uint8)

    before = threading.active_count()
    results = map_ahead(make, range(40), 4, 2, limit=BytesAhead(1, UsualSize()))
    next(results)
    time.sleep(0.05)
    results.close()
    assert threading.active_count() == before


def test_a_loader_remembers_the_size_of_its_batches():
    usual = UsualSize()
    for nbytes in [10] * 5 + [100] * 30:
        usual.note(nbytes)
    assert 90 < usual.nbytes < 100
    usual.note(100_000)
    assert usual.nbytes < 20_000
