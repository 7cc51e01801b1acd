"""What peers.py measures, as it is done in the processes that it starts, one loader in each."""

import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from fastloop.spans import now_ns, seconds_between

MIB = 2**20
STATUS = Path("/proc/self/status")
LOOKS = 50
"""At the memory in an epoch."""
FILLED = 63
"""Of every byte: memory that nobody has written to is not there, and four such bytes are a plain
float."""
CALIBRATED_WIDTH = 128
SPIN = "print(flush=True)\nwhile True: pass"


@dataclass(frozen=True)
class Workload:
    """Rows and their labels, shuffled: in memory, or in a file that is mapped."""

    count: int
    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    file: str = ""
    by_numpy: bool = False
    """numpy asks the system for pages of 2 MiB, torch takes what it gets, which is 4 KiB."""

    @property
    def held_nbytes(self) -> int:
        """Of the source's own memory; what is mapped is the page cache's."""
        row = np.dtype(self.dtype).itemsize * int(np.prod(self.shape))
        return self.count * (8 if self.file else row + 8)

    def source(self) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(self.count)
        if self.file:
            return torch.from_numpy(np.load(self.file, mmap_mode="c")), labels
        shape = (self.count, *self.shape)
        if self.by_numpy:
            rows = torch.from_numpy(np.empty(shape, self.dtype))
            labels = torch.from_numpy(np.arange(self.count))
        else:
            rows = torch.empty(shape, dtype=getattr(torch, self.dtype))
        rows.view(-1).view(torch.uint8).fill_(FILLED)
        return rows, labels

    def write(self) -> None:
        """The file; it is in the page cache then."""
        shape = (self.count, *self.shape)
        rows = np.lib.format.open_memmap(self.file, "w+", self.dtype, shape)
        for start in range(0, self.count, 1000):
            rows[start : start + 1000] = FILLED
        rows.flush()


@dataclass(frozen=True)
class Files:
    """Encoded images and their labels, decoded and resized."""

    folder: str
    size: tuple[int, int]
    count: int
    batch_size: int

    @property
    def held_nbytes(self) -> int:
        return 8 * self.count

    def source(self) -> tuple[Any, torch.Tensor]:
        from fastloop import Images

        paths = sorted(map(str, Path(self.folder).rglob("*.jpg")))
        return Images(paths, size=self.size), torch.arange(len(paths))


@dataclass(frozen=True)
class Whole(Dataset):
    """Batches of rows by a tensor of indices; index_select is the fastest way that torch has."""

    leaves: tuple[torch.Tensor, ...]

    def __getitem__(self, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(leaf.index_select(0, indices) for leaf in self.leaves)


@dataclass(frozen=True)
class IndexTensors(Sampler):
    """A permutation, cut into tensors of indices."""

    count: int
    batch_size: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randperm(self.count).split(self.batch_size))


def fastloader(workload: Workload | Files) -> Iterable[Any]:
    from fastloop import FastLoader

    return FastLoader(workload.source(), workload.batch_size, shuffle=True)


def dataloader(workload: Workload) -> Iterable[Any]:
    """DataLoader at its best for rows at hand: no workers, a tensor of indices a batch."""
    sampler = IndexTensors(workload.count, workload.batch_size)
    return DataLoader(Whole(workload.source()), batch_size=None, sampler=sampler)


LOADERS: dict[str, Callable[[Workload], Iterable[Any]]] = {
    "FastLoader": fastloader,
    "DataLoader": dataloader,
}


@cache
def made(loader: str, workload: Any) -> Any:
    """One of the process, so that later rounds find it warm."""
    return LOADERS[loader](workload)


def traversal_s(loader: str, workload: Workload, epochs: int) -> float:
    """Seconds of so many epochs after which nothing is done with the batches."""
    batches, start = made(loader, workload), now_ns()
    for _ in range(epochs):
        for _ in batches:
            pass
    return seconds_between(start, now_ns())


def beside_a_neighbour_s(loader: str, workload: Workload, epochs: int, busy: bool) -> float:
    """The same, with another process that keeps a core busy or without."""
    if not busy:
        return traversal_s(loader, workload, epochs)
    with neighbour():
        return traversal_s(loader, workload, epochs)


@contextmanager
def neighbour() -> Iterator[None]:
    spinning = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    try:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        yield
    finally:
        spinning.kill()
        spinning.communicate()


class Step:
    """A layer on one thread, on all of a small image or on every 8th row and column of a large
    one; what a process that trains does while it has a batch."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        self._every = 8 if shape[-1] > 100 else 1
        side = -(-shape[-1] // self._every)
        self._weights = torch.randn(shape[0] * side * side, width)

    def __call__(self, batch: Any) -> None:
        pixels = batch[0][..., :: self._every, :: self._every].flatten(1).float()
        (pixels @ self._weights).relu_().sum()


@cache
def step_of(workload: Workload, width: int) -> Step:
    torch.set_num_threads(1)
    return Step(workload.shape, width)


@cache
def resident(workload: Workload) -> list[Any]:
    """Batches that are there already: as many as an epoch has, four different ones."""
    few = [tuple(leaf.clone() for leaf in one) for one in islice(dataloader(workload), 4)]
    number = -(-workload.count // workload.batch_size)
    return [few[place % len(few)] for place in range(number)]


def width_for(workload: Workload, step_ms: float) -> int:
    """How wide the layer has to be for a step of about that time, found in a few goes: what it
    takes beside the layer does not grow with it."""
    batches, width = resident(workload), CALIBRATED_WIDTH
    torch.set_num_threads(1)
    for _ in range(4):
        step = Step(workload.shape, width)
        took = statistics.median(_took_ms(step, batch) for batch in batches[:30])
        width = max(1, round(width * step_ms / took))
    return width


def _took_ms(step: Step, batch: Any) -> float:
    start = now_ns()
    step(batch)
    return 1e3 * seconds_between(start, now_ns())


@dataclass(frozen=True)
class Stepped:
    """Milliseconds a batch."""

    whole: float
    waiting: float
    """In next()."""


def stepped(loader: str, workload: Workload, width: int) -> Stepped:
    """An epoch with a step on every batch; no loader: on resident ones."""
    step = step_of(workload, width)
    batches = made(loader, workload) if loader else resident(workload)
    begun = last = now_ns()
    waiting_ns = count = 0
    for batch in batches:
        waiting_ns += now_ns() - last
        step(batch)
        count += 1
        last = now_ns()
    waiting_ns += now_ns() - last
    return Stepped(1e3 * seconds_between(begun, now_ns()) / count, 1e-6 * waiting_ns / count)


def told_mib(name: str) -> float:
    """What the kernel says of this process."""
    (line,) = (one for one in STATUS.read_text().splitlines() if one.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def private_mib(workload: Workload | Files, epochs: int) -> float:
    """The most memory that was the process's own above what it was after importing torch, without
    the source: RssAnon, to which no page of a mapped file belongs."""
    before = told_mib("RssAnon")
    batches, peak = made("FastLoader", workload), 0.0
    every = max(1, workload.count // workload.batch_size // LOOKS)
    for _ in range(epochs):
        for number, _ in enumerate(batches):
            if number % every == 0:
                peak = max(peak, told_mib("RssAnon"))
    return max(peak, told_mib("RssAnon")) - before - workload.held_nbytes / MIB


def start_of(count: int, file: str) -> tuple[float, float]:
    """Seconds and MiB from nothing to the first batch of so many samples, shuffled by Blocks, in a
    file of 8 bytes each; the MiB are a peak."""
    from fastloop import Blocks, FastLoader

    rows = np.memmap(file, np.uint8, "r", shape=(count, 8))
    before, start = told_mib("VmRSS"), now_ns()
    batches = iter(FastLoader(rows, 1000, Blocks(1024)))
    next(batches)
    seconds = seconds_between(start, now_ns())
    peak = told_mib("VmHWM")
    batches.close()
    return seconds, peak - before


@dataclass(frozen=True)
class Edges:
    """Milliseconds."""

    first: float
    """From iter() to the first batch, of a loader that has not been asked before."""
    gap: float
    """From the last batch of an epoch to the first of the next."""
    batch: float
    """Between the first and the last batch of an epoch, a batch."""


def edges(workload: Workload) -> Edges:
    loader = LOADERS["FastLoader"](workload)
    begun, came = [], []
    for _ in range(3):
        begun.append(now_ns())
        came.append([now_ns() for _ in loader])
    batch = [1e-6 * (one[-1] - one[0]) / max(1, len(one) - 1) for one in came]
    gaps = [1e-6 * (after[0] - before[-1]) for before, after in pairwise(came)]
    first = 1e-6 * (came[0][0] - begun[0])
    return Edges(first, statistics.median(gaps), statistics.median(batch))
