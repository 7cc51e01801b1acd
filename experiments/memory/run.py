"""The memory that DataLoader's workers do not share, for each container of the samples.

A million small samples, integers or file names, are stored in a Python list, a numpy array, a
tensor or a memory map; 0, 1, 2 and 4 forked workers read each of them once, in random order. Forked
memory is shared until it is written to, and reading a Python object writes its reference count. So
each worker should end with a copy of a list's pages, while the pages of an array stay shared. Seed
002 refers to https://ppwwyyxx.com/blog/2022/Demystify-RAM-Usage-in-Multiprocess-DataLoader/, which
says so.

    python -m experiments.memory.run [samples]

Each line is measured in its own process. In MiB: the memory that the container adds to the process;
a worker's unshared memory when it starts and after one epoch (USS, the mean of all workers); and
PSS, which counts shared pages once, of the process before it starts workers and of all processes
after the epoch. Without workers, the process itself reads. A file's page that only one process has
mapped counts as its own, although the page cache can drop it.
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
"""Python shares smaller integers; from this one on, each integer is its own object."""


def name_of(index: int) -> str:
    """The file name that a sample of this index has."""
    return f"train/{index % 1000:04d}/{index:08d}.jpg"


def memory_map(count: int) -> np.ndarray:
    """A memory map of this many integers."""
    # The mapping stays valid after the file has been removed.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npy"
        np.save(path, np.arange(FIRST, FIRST + count))
        return np.load(path, mmap_mode="r")


CONTAINERS: dict[str, Callable[[int], Any]] = {
    "list of integers": lambda count: list(range(FIRST, FIRST + count)),
    "list of names": lambda count: [name_of(index) for index in range(count)],
    "array of integers": lambda count: np.arange(FIRST, FIRST + count),
    "array of names": lambda count: np.array([name_of(i) for i in range(count)], dtype=np.bytes_),
    "tensor": lambda count: torch.arange(FIRST, FIRST + count),
    "memory map": memory_map,
}


class ContainerDataset(Dataset):
    """A dataset of the samples in a container."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class PermutationSampler(Sampler):
    """A permutation in a tensor. The memory of a list would be measured as well."""

    def __init__(self, count: int) -> None:
        self.order = torch.randperm(count)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        for piece in self.order.split(BATCH):
            yield from piece.tolist()


def unique_mib(process: psutil.Process) -> float:
    """The process's unshared memory (USS) in MiB."""
    return process.memory_full_info().uss / MIB


def pss_mib(processes: list[psutil.Process]) -> float:
    """The PSS of all these processes in MiB."""
    return sum(process.memory_full_info().pss for process in processes) / MIB


def measure(container: str, workers: int, count: int) -> tuple[float, ...]:
    warnings.filterwarnings("ignore", "This DataLoader will create")
    here = psutil.Process()
    at_start = get_context("fork").Array("d", max(1, workers))
    order = PermutationSampler(count)
    empty = pss_mib([here])
    samples = CONTAINERS[container](count)
    alone = pss_mib([here])
    at_start[0] = unique_mib(here)

    # A worker calls this before it has read anything.
    def note_start(number: int) -> None:
        at_start[number] = unique_mib(psutil.Process())

    loader = DataLoader(
        ContainerDataset(samples),
        batch_size=BATCH,
        sampler=order,
        # The batch becomes a number, so that only reading is measured, and no transfer.
        collate_fn=len,
        num_workers=workers,
        worker_init_fn=note_start if workers else None,
        # The workers have to live until they are measured, after the epoch.
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    assert sum(loader) == count
    readers = here.children(recursive=True) or [here]
    assert len(readers) == max(1, workers)
    after = [unique_mib(reader) for reader in readers]
    total = pss_mib([here, *here.children(recursive=True)])
    return alone - empty, fmean(at_start), fmean(after), alone, total


def main(count: int) -> None:
    print(f"{count:,} samples, MiB")
    print(f"{'held in':<18} workers   held  USS at start, after    PSS before, after")
    for container in CONTAINERS:
        for workers in (0, 1, 2, 4):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                size, start, end, before, after = pool.submit(
                    measure, container, workers, count
                ).result()
            figures = f"{size:>6.1f} {start:>13.1f} {end:>6.1f} {before:>13.1f} {after:>6.1f}"
            print(f"{container:<18} {workers:>7} {figures}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES)
