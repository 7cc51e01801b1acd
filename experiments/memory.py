"""How much memory of their own do DataLoader's workers take, by what the samples are held in?

A million small samples, integers or file names, lie in a Python list, a numpy array, a tensor or a
memory map; 0, 1, 2 and 4 forked workers read each of them once, in random order. What is forked is
shared until it is written to, and reading a Python object writes its reference count: so the pages
of a list should become each worker's own, those of an array stay shared. Seed 002 names
https://ppwwyyxx.com/blog/2022/Demystify-RAM-Usage-in-Multiprocess-DataLoader/, which says so.

    python experiments/memory.py [samples]

Each line is a process of its own. Reported in MiB: what holding the samples adds to it, then what
one epoch adds: to the memory that a worker has for itself (USS, their mean), to the USS of all
processes together, and to PSS, in which what is shared is counted once. A file's page that a single
process has mapped counts as its own, though the page cache can let it go.
"""

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

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


def memory(processes: list[psutil.Process]) -> tuple[list[float], float]:
    """(MiB of each that no other process shares, PSS of all together)."""
    seen = [process.memory_full_info() for process in processes]
    return [one.uss / MIB for one in seen], sum(one.pss for one in seen) / MIB


def measured(what: str, workers: int, count: int) -> tuple[float, float, float, float]:
    here = psutil.Process()
    torch.arange(10).sum()
    empty = memory([here])[1]
    samples = HELD[what](count)
    held = memory([here])[1] - empty
    loader = DataLoader(
        Held(samples),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=len,  # so that no batch travels: only reading is looked at
        num_workers=workers,
        persistent_workers=workers > 0,  # they are looked at after the epoch
        multiprocessing_context="fork" if workers else None,
    )
    batches = iter(loader)
    next(batches)
    processes = [here, *here.children(recursive=True)]
    assert len(processes) == 1 + workers
    own, together = memory(processes)
    assert sum(batches) + BATCH == count
    own_after, together_after = memory(processes)
    grown = [after - before for before, after in zip(own, own_after, strict=True)]
    a_worker = sum(grown[1:]) / workers if workers else 0.0
    return held, a_worker, sum(grown), together_after - together


def main(count: int) -> None:
    print(f"{count:,} samples, MiB")
    print(f"{'held in':<18} workers    held  USS a worker  USS of all    PSS")
    for what in HELD:
        for workers in (0, 1, 2, 4):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                held, own, every, pss = pool.submit(measured, what, workers, count).result()
            figures = f"{held:>7.1f} {own:>13.1f} {every:>11.1f} {pss:>6.1f}"
            print(f"{what:<18} {workers:>7} {figures}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
