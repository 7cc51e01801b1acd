"""How much memory of their own do DataLoader's workers take, by what the samples are held in?

A million small samples, integers or file names, lie in a Python list, a numpy array, a tensor or a
memory map; 0, 1, 2 and 4 forked workers read each of them once, in random order. What is forked is
shared until it is written to, and reading a Python object writes its reference count: so the pages
of a list should become each worker's own, those of an array stay shared. Seed 002 names
https://ppwwyyxx.com/blog/2022/Demystify-RAM-Usage-in-Multiprocess-DataLoader/, which says so.

    python experiments/memory.py [samples]

Each line is a process of its own. Reported in MiB: what holding the samples adds to it; what a
worker has for itself when it starts and after one epoch (USS, the mean of all workers); and PSS, in
which what is shared is counted once, of the process before it starts workers and of all of them
after the epoch. Without workers the process itself reads. A file's page that a single process has
mapped counts as its own, though the page cache can let it go.
"""

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

SAMPLES = 1_000_000
BATCH = 1000
MIB = 2**20
FIRST = 1000
"""Python keeps smaller integers once for all; these are objects of their own."""


def name_of(index: int) -> str:
    return f"train/{index % 1000:04d}/{index:08d}.jpg"


def memory_map(count: int) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:  # what is mapped stays, though its name goes
        path = Path(folder) / "samples.npy"
        np.save(path, np.arange(FIRST, FIRST + count))
        return np.load(path, mmap_mode="r")


HELD: dict[str, Callable[[int], Any]] = {
    "list of integers": lambda count: list(range(FIRST, FIRST + count)),
    "list of names": lambda count: [name_of(index) for index in range(count)],
    "array of integers": lambda count: np.arange(FIRST, FIRST + count),
    "array of names": lambda count: np.array([name_of(i) for i in range(count)], dtype=np.bytes_),
    "tensor": lambda count: torch.arange(FIRST, FIRST + count),
    "memory map": memory_map,
}


class Held(Dataset):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Shuffled(Sampler):
    """A permutation without a list of its own, which would be measured too."""

    def __init__(self, count: int) -> None:
        self.order = torch.randperm(count)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        for piece in self.order.split(BATCH):
            yield from piece.tolist()


def own_mib(process: psutil.Process) -> float:
    return process.memory_full_info().uss / MIB


def pss_mib(processes: list[psutil.Process]) -> float:
    return sum(process.memory_full_info().pss for process in processes) / MIB


def measured(what: str, workers: int, count: int) -> tuple[float, ...]:
    warnings.filterwarnings("ignore", "This DataLoader will create")
    here = psutil.Process()
    at_start = get_context("fork").Array("d", max(1, workers))
    order = Shuffled(count)
    empty = pss_mib([here])
    samples = HELD[what](count)
    alone = pss_mib([here])
    at_start[0] = own_mib(here)

    def started(number: int) -> None:  # in the worker, before it has read anything
        at_start[number] = own_mib(psutil.Process())

    loader = DataLoader(
        Held(samples),
        batch_size=BATCH,
        sampler=order,
        collate_fn=len,  # so that no batch travels: only reading is looked at
        num_workers=workers,
        worker_init_fn=started if workers else None,
        persistent_workers=workers > 0,  # they are looked at after the epoch
        multiprocessing_context="fork" if workers else None,
    )
    assert sum(loader) == count
    readers = here.children(recursive=True) or [here]
    assert len(readers) == max(1, workers)
    after = [own_mib(reader) for reader in readers]
    together = pss_mib([here, *here.children(recursive=True)])
    return alone - empty, fmean(at_start), fmean(after), alone, together


def main(count: int) -> None:
    print(f"{count:,} samples, MiB")
    print(f"{'held in':<18} workers   held  USS at start, after    PSS before, after")
    for what in HELD:
        for workers in (0, 1, 2, 4):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                held, start, end, before, after = pool.submit(
                    measured, what, workers, count
                ).result()
            figures = f"{held:>6.1f} {start:>13.1f} {end:>6.1f} {before:>13.1f} {after:>6.1f}"
            print(f"{what:<18} {workers:>7} {figures}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
