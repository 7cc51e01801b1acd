"""Epochs in which nothing is done with the batches, measured in a loader's own process."""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from experiments.peers.loaders import LOADERS, warm_loader
from experiments.peers.workloads import EncodedFiles, Workload
from fastloop.core.spans import now_ns, seconds_between

MIB = 2**20
STATUS = Path("/proc/self/status")
SAMPLES = 50
"""How often an epoch's memory is sampled."""
SPIN = "print(flush=True)\nwhile True: pass"


@dataclass(frozen=True)
class EpochEdges:
    """Parts of an epoch, in milliseconds."""

    first: float
    """Time from iter() of a new loader to its first batch."""
    gap: float
    """Time from the last batch of an epoch to the first of the next."""
    batch: float
    """Time per batch, between the first and the last batch of an epoch."""


def traversal_s(loader: str, workload: Workload, epochs: int, busy: bool = False) -> float:
    """Seconds of n epochs. busy: run them beside another process that keeps a core busy."""
    if busy:
        with busy_process():
            return traversal_s(loader, workload, epochs)
    batches, start = warm_loader(loader, workload), now_ns()
    for _ in range(epochs):
        for _ in batches:
            pass
    return seconds_between(start, now_ns())


@contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that keeps a core busy, until the exit."""
    child = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield
    finally:
        child.kill()
        child.communicate()


def measure_edges(workload: Workload) -> EpochEdges:
    """Time the beginning of an epoch, the gap between two epochs, and the batches between."""
    loader = LOADERS["FastLoader"](workload)
    starts, arrivals = [], []
    for _ in range(3):
        starts.append(now_ns())
        arrivals.append([now_ns() for _ in loader])
    batch = [1e-6 * (epoch[-1] - epoch[0]) / max(1, len(epoch) - 1) for epoch in arrivals]
    gaps = [1e-6 * (after[0] - before[-1]) for before, after in pairwise(arrivals)]
    first = 1e-6 * (arrivals[0][0] - starts[0])
    return EpochEdges(first, statistics.median(gaps), statistics.median(batch))


def private_mib(workload: Workload | EncodedFiles, epochs: int) -> float:
    """The highest RssAnon, which counts no page of a mapped file, minus its value after importing
    torch, and minus the source's own memory."""
    before = status_mib("RssAnon")
    batches, peak = warm_loader("FastLoader", workload), 0.0
    every = max(1, workload.count // workload.batch_size // SAMPLES)
    for _ in range(epochs):
        for number, _ in enumerate(batches):
            if number % every == 0:
                peak = max(peak, status_mib("RssAnon"))
    return max(peak, status_mib("RssAnon")) - before - workload.source_nbytes / MIB


def measure_start(count: int, file: str) -> tuple[float, float]:
    """Seconds until the first batch, and MiB of memory at the peak, from nothing: n samples of 8
    bytes in a file, shuffled by Blocks."""
    from fastloop import Blocks, FastLoader

    rows = np.memmap(file, np.uint8, "r", shape=(count, 8))
    before, start = status_mib("VmRSS"), now_ns()
    batches = iter(FastLoader(rows, 1000, Blocks(1024), seed=0))
    next(batches)
    seconds = seconds_between(start, now_ns())
    peak = status_mib("VmHWM")
    batches.close()
    return seconds, peak - before


def status_mib(name: str) -> float:
    """A field of this process's status, as the kernel shows it."""
    lines = STATUS.read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
