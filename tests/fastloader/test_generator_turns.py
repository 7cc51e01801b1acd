"""Loops in several threads of a program, and the global generators that they share."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from fastloop import FastLoader
from fastloop.fastloader import generator_turns
from fastloop.fastloader.generator_turns import Turn
from fastloop.fastloader.global_generators import GENERATORS


class Slow(Dataset):
    """(index, what was drawn) samples, during which other threads run."""

    def __init__(self, draw: Callable[[], Any], first: int = 0) -> None:
        self.draw, self.first = draw, first

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float]:
        time.sleep(0.001)
        drawn = float(self.draw()) if index >= self.first else -1.0
        time.sleep(0.001)
        return index, drawn


class Stream(IterableDataset):
    """The samples of a Dataset, one after the other."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __iter__(self):
        return map(self.dataset.__getitem__, range(len(self.dataset)))


DRAWS = {
    "numpy": np.random.rand,
    "random": random.random,
    "torch": lambda: torch.rand(()),
    "nothing": lambda: 0,
}


def in_threads(*loaders: Iterable[Any]) -> list[list]:
    """The batches of each loader as lists; all are iterated over at the same time."""
    batches: list[list] = [[] for _ in loaders]
    barrier = threading.Barrier(len(loaders))

    def iterate(loader: Iterable[Any], into: list) -> None:
        barrier.wait()
        into += [[leaf.tolist() for leaf in batch] for batch in loader]

    pairs = zip(loaders, batches, strict=True)
    threads = [threading.Thread(target=iterate, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return batches


def watch_all() -> dict[str, Any]:
    return {name: each.watch() for name, each in GENERATORS.items()}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("first", [0, 9], ids=["from the first", "from the tenth"])
@pytest.mark.parametrize("kinds", [("numpy", "numpy"), ("random", "nothing"), ("torch", "numpy")])
def test_loops_in_two_threads_draw_as_one_after_the_other(kinds, first):
    def make() -> list[FastLoader]:
        datasets = [Slow(DRAWS[kind], first) for kind in kinds]
        return [FastLoader(each, 3, seed=7, num_threads=0) for each in datasets]

    expected = [[[leaf.tolist() for leaf in batch] for batch in loader] for loader in make()]
    before, loaders = watch_all(), make()
    assert in_threads(*loaders) == expected
    assert watch_all() == before


def test_streams_in_two_threads_draw_as_one_after_the_other():
    make = [FastLoader(Stream(Slow(np.random.rand)), 3, seed=7, num_threads=0) for _ in range(2)]
    before = watch_all()
    first, second = in_threads(*make)
    assert first == second
    assert watch_all() == before


def test_samples_that_draw_nothing_are_read_at_the_same_time():
    """One loop's samples may even wait for the other's."""
    items: queue.SimpleQueue[int] = queue.SimpleQueue()
    datasets = [Slow(DRAWS["nothing"]) for _ in range(2)]
    loaders = [FastLoader(each, 3, seed=0, num_threads=0) for each in datasets]
    for loader in loaders:
        list(loader)  # the first batch has been read with a turn to seed
    takes, puts = (loader.dataset for loader in loaders)
    takes.draw, puts.draw = (lambda: items.get(timeout=3)), (lambda: items.put(1) or 0)
    taken, put = in_threads(*loaders)
    assert len(taken) == len(put) == 8


def test_loop_that_waits_in_vain_goes_on_with_a_warning(monkeypatch):
    monkeypatch.setattr(generator_turns, "PATIENCE_S", 0.05)
    monkeypatch.setattr(generator_turns, "_turns", generator_turns._Turns())
    ends = threading.Event()

    def hold() -> None:
        with Turn(seeds=True):
            held.set()
            ends.wait()

    held, thread = threading.Event(), threading.Thread(target=hold)
    thread.start()
    held.wait()
    loader = FastLoader(Slow(np.random.rand), 6, num_threads=0)
    with pytest.warns(UserWarning, match=r"waited 0\.05 s for the samples of a loop in another"):
        assert len(list(loader)) == 4
    ends.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_no_turns_of_its_parent():
    with Turn(seeds=True):
        pid = os.fork()
        if pid == 0:
            done = threading.Thread(target=list, args=(FastLoader(Slow(np.random.rand), 6),))
            done.start()
            done.join(20)
            os._exit(done.is_alive())
    assert os.waitpid(pid, 0)[1] == 0


def test_orders_that_are_drawn_while_another_loop_watches_are_not_repeated():
    """An epoch draws its seed from torch's global generator, which no other loop may set back."""
    torch.manual_seed(0)
    expected = [next(iter(FastLoader(range(8), 8, shuffle=True))).tolist() for _ in range(20)]
    torch.manual_seed(0)
    orders: list[list[int]] = []

    def draw_orders() -> None:
        for _ in range(20):
            orders.append(next(iter(FastLoader(range(8), 8, shuffle=True))).tolist())
            time.sleep(0.002)

    watching = FastLoader(Slow(DRAWS["nothing"]), 3, seed=0, num_threads=0)
    thread = threading.Thread(target=draw_orders)
    thread.start()
    while thread.is_alive():
        list(watching)
    thread.join()
    assert orders == expected
