"""Samples that only the loop's thread can read are read there, though no setting says so."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fastloop import FastLoader

STEP_S = 0.02
OPENED: list[sqlite3.Connection] = []


@pytest.fixture(autouse=True)
def close_databases() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


class Slow(Dataset):
    """Samples that take long enough for FastLoader to begin a thread, and the threads that asked
    for each."""

    def __init__(self) -> None:
        self.readers: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        self.readers.append((index, threading.get_ident()))
        time.sleep(0.005)
        return self.read(index)

    def read(self, index: int) -> Any:
        return index


class Rows(Slow):
    """Rows of a database that refuses other threads than the one that opened it."""

    def __init__(self) -> None:
        super().__init__()
        self.database = sqlite3.connect(":memory:")
        # Python 3.13 warns of a connection that is collected while it is open. The thread that
        # drops the last reference may be another than this one, so the test closes it.
        OPENED.append(self.database)
        self.database.execute("create table numbers (place integer, value real)")
        rows = [(place, place / 2) for place in range(48)]
        self.database.executemany("insert into numbers values (?, ?)", rows)

    def read(self, index: int) -> torch.Tensor:
        found = self.database.execute("select value from numbers where place = ?", (index,))
        return torch.tensor(found.fetchone())


class Alarmed(Slow):
    """Samples that a signal's handler would interrupt, which only the main thread can set."""

    def read(self, index: int) -> int:
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR1, before)
        return index


class Drawn(Rows):
    def read(self, index: int) -> torch.Tensor:
        return super().read(index) + torch.rand(())


class Local(Slow):
    """Samples that other threads can't read from some index on; two can't be read at all."""

    def __init__(self, first: int, broken: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.first, self.broken, self.owner = first, broken, threading.get_ident()

    def read(self, index: int) -> int:
        if index in self.broken:
            raise LookupError(f"no sample {index}")
        if index >= self.first and threading.get_ident() != self.owner:
            raise ValueError(f"sample {index} in another thread")
        return index


class Disturbed(Slow):
    """Samples that other threads fail to read the first time, as from a disk with an error that
    passes."""

    def __init__(self, *disturbed: int) -> None:
        super().__init__()
        self.left, self.owner = set(disturbed), threading.get_ident()

    def read(self, index: int) -> int:
        if index in self.left and threading.get_ident() != self.owner:
            self.left.remove(index)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return index


def walk(batches: Iterator[Any]) -> list[Any]:
    """The batches of the rest of an epoch as lists, and the text of each error."""
    found = []
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return found
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append(batch.tolist())
        time.sleep(STEP_S)


def find_others(dataset: Slow) -> list[int]:
    """The samples that other threads than this one have asked for, in this order."""
    return [index for index, reader in dataset.readers if reader != threading.get_ident()]


@pytest.mark.heavy
@pytest.mark.parametrize("make", [Rows, Alarmed, Drawn])
def test_an_epoch_goes_on_in_the_loop_if_another_thread_cannot_read(make, caplog):
    if make is Alarmed and not hasattr(signal, "SIGUSR1"):
        pytest.skip("this system has no SIGUSR1")
    torch.manual_seed(0)
    expected = [walk(iter(FastLoader(make(), 4, num_threads=0))) for _ in range(2)]
    torch.manual_seed(0)
    dataset = make()
    loader = FastLoader(dataset, 4)
    with caplog.at_level(logging.INFO, "fastloop"):
        epochs = [walk(iter(FastLoader(make(), 4))), walk(iter(loader))]
        assert epochs == expected
        count = len(find_others(dataset))
        assert count, "no thread has begun"
        assert len(walk(iter(loader))) == 12
    assert len(find_others(dataset)) == count, "the loop reads for good"
    told = [each.message for each in caplog.records if "reads in the loop" in each.message]
    assert len(told) == 2, "one line of each loader"
    assert all("thread" in each for each in told)


def test_a_thread_reads_on_after_an_error_that_has_passed(caplog):
    dataset = Disturbed(30)
    with caplog.at_level(logging.INFO, "fastloop"):
        batches = walk(iter(FastLoader(dataset, 4)))
    assert [*chain.from_iterable(batches)] == [*range(48)]
    assert [index for index, _ in dataset.readers].count(30) == 2
    assert 47 in find_others(dataset)
    told = [each.message for each in caplog.records if "Input/output error" in each.message]
    assert len(told) == 1, "one line of the error"


def test_the_loop_reads_for_good_after_a_second_error_soon():
    dataset = Disturbed(26, 38)
    loader = FastLoader(dataset, 4)
    assert [*chain.from_iterable(walk(iter(loader)))] == [*range(48)]
    count = len(find_others(dataset))
    assert not dataset.left, "no thread has met both"
    assert [*chain.from_iterable(walk(iter(loader)))] == [*range(48)]
    assert len(find_others(dataset)) == count


@pytest.mark.parametrize("settings", [{}, {"shuffle": True, "seed": 3}], ids=str)
@pytest.mark.parametrize("first", [0, 21, 30, 47])
def test_errors_of_the_samples_stay_and_those_of_the_thread_go(first, settings):
    broken = 26, 38
    expected = walk(iter(FastLoader(Local(0, broken), 4, num_threads=0, **settings)))
    dataset = Local(first, broken)
    assert walk(iter(FastLoader(dataset, 4, **settings))) == expected
    assert sum(isinstance(each, str) for each in expected) == 2
    assert find_others(dataset), "no thread has begun"


def test_a_thread_goes_on_after_a_sample_that_the_loop_cannot_read_either():
    dataset = Local(48, (26,))
    assert walk(iter(FastLoader(dataset, 4))) == walk(iter(DataLoader(Local(48, (26,)), 4)))
    assert 47 in find_others(dataset)


def test_errors_of_samples_that_the_loop_has_met_are_not_read_again():
    broken = tuple(range(20, 48))
    dataset = Local(48, broken)
    assert walk(iter(FastLoader(dataset, 4))) == walk(iter(DataLoader(Local(48, broken), 4)))
    asked = [index for index, _ in dataset.readers]
    # The first sample of a batch ends it. The turn that met the first error had begun others.
    assert 44 in find_others(dataset)
    assert asked.count(44) == 1


def test_a_state_after_each_batch_begins_with_the_next_one():
    dataset = Local(22)
    loader = FastLoader(dataset, 4)
    states = []
    for batch in loader:
        states.append((batch.tolist(), loader.state_dict()))
        time.sleep(STEP_S)
    assert [*chain.from_iterable(batch for batch, _ in states)] == [*range(48)]
    assert find_others(dataset), "no thread has begun"
    for batch, state in states[4:]:
        resumed = FastLoader(Slow(), 4, num_threads=0)
        resumed.load_state_dict(state)
        left = [each.tolist() for each in resumed]
        assert [*chain.from_iterable(left)] == [*range(batch[-1] + 1, 48)]


def test_a_transform_that_needs_the_loop_gets_each_batch():
    owner = threading.get_ident()

    def transform(batch: torch.Tensor) -> torch.Tensor:
        if threading.get_ident() != owner:
            raise ValueError("transformed in another thread")
        return batch + 1

    dataset = Slow()
    batches = walk(iter(FastLoader(dataset, 4, transform=transform)))
    assert [*chain.from_iterable(batches)] == [*range(1, 49)]
    assert find_others(dataset), "no thread has begun"


class Ending(Sampler):
    """The indices of 20 batches, and an error."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([each, each + 1] for each in range(0, 40, 2))
        raise LookupError("no more indices")


def test_an_error_of_the_sampler_comes_after_the_batches_before_it():
    # The thread is two batches ahead: the sampler has ended when the thread first fails. Without a
    # seed, a sampler is read as DataLoader reads it, by no thread.
    dataset = Local(34)
    batches = walk(iter(FastLoader(dataset, 1, batch_sampler=Ending(), seed=0)))
    assert batches == [
        *([each, each + 1] for each in range(0, 40, 2)),
        "LookupError: no more indices",
    ]
    assert find_others(dataset), "no thread has begun"


@pytest.mark.parametrize("settings", [{"num_threads": 1}, {"thread_safe": True}], ids=str)
def test_errors_of_threads_that_were_asked_for_are_raised(settings):
    found = walk(iter(FastLoader(Local(20), 4, **settings)))
    assert "ValueError: sample 20 in another thread" in found
