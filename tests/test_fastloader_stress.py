"""Thousands of small epochs, however they end, leave nothing behind; and several processes."""

from __future__ import annotations

import gc
import threading
from collections import deque
from itertools import islice

import numpy as np
import os_threads
import psutil
import pytest
import torch
import torch.distributed as dist
from pictures import crop, jpeg
from torch.utils.data import Dataset, RandomSampler

from fastloop import FastLoader, Images, Windows

COUNT = 48


class Failing(Dataset):
    """A sample that can't be read, now and then."""

    def __init__(self) -> None:
        self.broken = -1

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        if index == self.broken:
            raise ZeroDivisionError(index)
        return torch.full((8,), index), index


def sources() -> dict:
    tokens = np.arange(COUNT * 8, dtype=np.uint16)
    rows = torch.arange(COUNT)[:, None].expand(COUNT, 500).clone()
    return {
        "rows": (rows, torch.arange(COUNT)),
        "samples": Failing(),
        "windows": (Windows(tokens, 8), torch.arange(COUNT)),
        "images": (Images([jpeg(crop(8, 8))] * COUNT, (6, 6)), torch.arange(COUNT)),
    }


class OnTheWay:
    """A sampler in the middle of whose epoch, in one of the loader's threads, `do` is called."""

    def __init__(self, do) -> None:
        self.do, self.here = do, threading.get_ident()

    def __len__(self) -> int:
        return 10_000

    def pieces(self):
        for number in range(self.__len__() // 64):
            if threading.get_ident() != self.here and (do := self.do):
                self.do = None
                do()
            yield np.arange(64) + number


def test_the_collector_may_close_an_epoch_in_a_thread_that_draws_it():
    class Holder:
        pass

    left, collected = threading.Event(), threading.Event()

    def collect() -> None:
        assert left.wait(60)
        gc.collect()
        collected.set()

    before = os_threads.counted()
    loader = FastLoader(torch.zeros(10_000, 8), 64, sampler=OnTheWay(collect), num_threads=2)
    holder = Holder()
    holder.cycle, holder.epoch = holder, iter(loader)
    next(holder.epoch)
    gc.disable()
    try:
        del holder
        left.set()
        assert collected.wait(60)
    finally:
        gc.enable()
    assert os_threads.fell_to(before)


class Ends:
    """Ends an epoch in one of the ways in which epochs end, and holds some of its batches."""

    def __init__(self, loader: FastLoader, step: int) -> None:
        self.loader, self.step, self.random = loader, step, np.random.default_rng(step)
        self.held: deque = deque(maxlen=7)
        self.ends = [self.whole, self.left, self.failed, self.forgotten, self.resumed]

    def epoch(self) -> None:
        self.ends[self.random.integers(len(self.ends))]()
        for batch, labels in self.held:
            first = batch.flatten(1)[:, 0]
            assert batch.dtype == torch.uint8 or torch.equal(first, labels * self.step)

    def whole(self) -> None:
        labels = [label for _, batch in self.loader for label in batch.tolist()]
        assert sorted(labels) == [*range(COUNT)]

    def left(self) -> None:
        self.held.extend(islice(self.loader, int(self.random.integers(8))))

    def failed(self) -> None:
        seven = int(self.random.integers(COUNT))
        self.loader.transform = raising_at(seven)
        if isinstance(self.loader.source, Failing):
            self.loader.source.broken, self.loader.transform = seven, None
        with pytest.raises(ZeroDivisionError):
            self.held.extend(self.loader)
        self.loader.transform = None
        if isinstance(self.loader.source, Failing):
            self.loader.source.broken = -1

    def forgotten(self) -> None:
        iter(self.loader)  # nothing is ever taken of it

    def resumed(self) -> None:
        running = iter(self.loader)
        first = [next(running)[1].tolist() for _ in range(3)]
        self.loader.load_state_dict(self.loader.state_dict())
        rest = [labels.tolist() for _, labels in self.loader]
        assert sorted(sum(first + rest, [])) == [*range(COUNT)]  # noqa: RUF017


def raising_at(label: int):
    def raising(batch):
        if label in batch[1]:
            raise ZeroDivisionError(label)
        return batch

    return raising


@pytest.mark.parametrize("kind", ["rows", "samples", "windows", "images"])
@pytest.mark.parametrize("drawn", ["seed", "sampler"])
def test_thousands_of_epochs_leave_nothing_behind(kind, drawn):
    sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(0))
    order = {"sampler": sampler} if drawn == "sampler" else {"shuffle": True}
    step = 8 if kind == "windows" else 1
    ends = Ends(FastLoader(sources()[kind], 6, num_threads=2, **order), step)
    process = psutil.Process()
    before: tuple[int, int, int] = (0, 0, 0)
    for number in range(500):
        ends.epoch()
        if number == 100:  # what is made once has been made
            gc.collect()
            rss = process.memory_info().rss
            before = os_threads.counted(), process.num_fds(), rss
    gc.collect()
    assert os_threads.fell_to(before[0])
    assert process.num_fds() < before[1] + 10  # a few are of threads that other tests have left
    assert process.memory_info().rss - before[2] < 8 << 20


def of_rank(rank: int, folder: str, found) -> None:
    """What one of three processes of torch.distributed is delivered in two epochs."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=3)
    loader = FastLoader(
        torch.arange(100), 8, shuffle=True, rank=dist.get_rank(), world_size=dist.get_world_size()
    )
    epochs = []
    for _ in range(2):
        seen = []
        for batch in loader:
            dist.all_reduce(batch.sum())  # all have as many batches, or this would hang
            seen += batch.tolist()
        epochs.append(seen)
    found.put((rank, epochs))
    dist.destroy_process_group()


def test_ranks_of_torch_distributed_share_each_epoch(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    arguments = (str(tmp_path), found)
    torch.multiprocessing.spawn(of_rank, arguments, nprocs=3)
    by_rank = dict(found.get() for _ in range(3))
    for epoch in range(2):
        seen = [one for rank in range(3) for one in by_rank[rank][epoch]]
        assert len(seen) == 102  # two more, so that all have as many
        assert set(seen) == set(range(100))
    assert by_rank[0][0] != by_rank[0][1]
