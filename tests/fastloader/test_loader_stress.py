"""FastLoader leaks nothing however epochs end, and serves ranks of torch.distributed."""

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
from image_samples import crop, jpeg
from torch.utils.data import Dataset, RandomSampler

from fastloop import FastLoader, Images, Windows

COUNT = 48


class FailingDataset(Dataset):
    """A Dataset of which the sample `broken` can't be read."""

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
        "samples": FailingDataset(),
        "windows": (Windows(tokens, 8), torch.arange(COUNT)),
        "images": (Images([jpeg(crop(8, 8))] * COUNT, (6, 6)), torch.arange(COUNT)),
    }


class CallbackTransform:
    """A transform that calls `callback` once, in a thread of the loader during an epoch."""

    def __init__(self, callback) -> None:
        self.callback, self.main_thread = callback, threading.get_ident()

    def __call__(self, batch):
        if threading.get_ident() != self.main_thread and (callback := self.callback):
            self.callback = None
            callback()
        return batch


def test_garbage_collection_closes_an_epoch_in_its_own_thread():
    class Holder:
        pass

    released, collected = threading.Event(), threading.Event()

    def collect() -> None:
        assert released.wait(60)
        gc.collect()
        collected.set()

    rows = torch.zeros(10_000, 8)  # created first: torch may start OpenMP threads to fill it
    threads = os_threads.count_threads()
    loader = FastLoader(rows, 64, transform=CallbackTransform(collect), num_threads=2)
    holder = Holder()
    holder.cycle, holder.epoch = holder, iter(loader)
    next(holder.epoch)
    gc.disable()
    try:
        del holder
        released.set()
        assert collected.wait(60)
    finally:
        gc.enable()
    assert os_threads.falls_to(threads)


class EpochRunner:
    """Runs epochs that end in a random way, and keeps some of their batches."""

    def __init__(self, loader: FastLoader, step: int) -> None:
        self.loader, self.step, self.random = loader, step, np.random.default_rng(step)
        self.kept: deque = deque(maxlen=7)
        self.endings = [self.finish, self.abandon, self.fail, self.skip, self.resume]

    def epoch(self) -> None:
        self.endings[self.random.integers(len(self.endings))]()
        for batch, labels in self.kept:
            first = batch.flatten(1)[:, 0]
            assert batch.dtype == torch.uint8 or torch.equal(first, labels * self.step)

    def finish(self) -> None:
        labels = [label for _, batch in self.loader for label in batch.tolist()]
        assert sorted(labels) == [*range(COUNT)]

    def abandon(self) -> None:
        self.kept.extend(islice(self.loader, int(self.random.integers(8))))

    def fail(self) -> None:
        broken = int(self.random.integers(COUNT))
        self.loader.transform = raise_at(broken)
        if isinstance(self.loader.source, FailingDataset):
            self.loader.source.broken, self.loader.transform = broken, None
        with pytest.raises(ZeroDivisionError):
            self.kept.extend(self.loader)
        self.loader.transform = None
        if isinstance(self.loader.source, FailingDataset):
            self.loader.source.broken = -1

    def skip(self) -> None:
        iter(self.loader)  # no batch is taken

    def resume(self) -> None:
        running = iter(self.loader)
        first = [next(running)[1].tolist() for _ in range(3)]
        self.loader.load_state_dict(self.loader.state_dict())
        rest = [labels.tolist() for _, labels in self.loader]
        assert sorted(sum(first + rest, [])) == [*range(COUNT)]  # noqa: RUF017


def raise_at(label: int):
    def raise_error(batch):
        if label in batch[1]:
            raise ZeroDivisionError(label)
        return batch

    return raise_error


@pytest.mark.soak
@pytest.mark.parametrize(
    ("order_source", "kind"),
    [
        *(("seed", kind) for kind in ("rows", "samples", "windows", "images")),
        ("sampler", "samples"),
    ],
)
def test_hundreds_of_epochs_leak_nothing(order_source, kind, is_soak):
    sampler = RandomSampler(range(COUNT), generator=torch.Generator().manual_seed(0))
    settings = {"sampler": sampler} if order_source == "sampler" else {"shuffle": True}
    step = 8 if kind == "windows" else 1
    runner = EpochRunner(FastLoader(sources()[kind], 6, num_threads=2, **settings), step)
    process = psutil.Process()
    before: tuple[int, int, int] = (0, 0, 0)
    for number in range(500 if is_soak else 160):
        runner.epoch()
        if number == 60:  # by now all lazy initialization is done
            gc.collect()
            rss = process.memory_info().rss
            before = os_threads.count_threads(), process.num_fds(), rss
    gc.collect()
    assert os_threads.falls_to(before[0])
    assert process.num_fds() < before[1] + 10  # threads of other tests may hold a few
    assert process.memory_info().rss - before[2] < 8 << 20


def deliver_epochs(rank: int, folder: str, queue) -> None:
    """Put (rank, samples of two epochs) into the queue; one of three ranks of torch.distributed."""
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=3)
    loader = FastLoader(
        torch.arange(100), 8, shuffle=True, rank=dist.get_rank(), world_size=dist.get_world_size()
    )
    epochs = []
    for _ in range(2):
        seen = []
        for batch in loader:
            dist.all_reduce(batch.sum())  # hangs unless all ranks have as many batches
            seen += batch.tolist()
        epochs.append(seen)
    queue.put((rank, epochs))
    dist.destroy_process_group()


@pytest.mark.heavy
@pytest.mark.nightly
def test_ranks_of_torch_distributed_share_each_epoch(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    arguments = (str(tmp_path), queue)
    torch.multiprocessing.spawn(deliver_epochs, arguments, nprocs=3)
    by_rank = dict(queue.get() for _ in range(3))
    for epoch in range(2):
        seen = [sample for rank in range(3) for sample in by_rank[rank][epoch]]
        assert len(seen) == 102  # two are repeated, so that all ranks have as many
        assert set(seen) == set(range(100))
    assert by_rank[0][0] != by_rank[0][1]
