"""Time per sample for 10^5 to 10^7 rows: does it grow, and does it grow in the gather alone?

Two loops are measured: FastLoader, and one thread per core that only gathers the same rows. If the
second grows, the machine is the reason. Each number of rows has its own process for both loops,
which lives through all rounds; see README.md.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from experiments.peers.lines import Line, figure, percent_more, ratio_by_round, times
from experiments.peers.prefetching_gather import PrefetchingGather
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.workloads import NORMALIZED, Workload
from fastloop.core.spans import now_ns, seconds_between

EPOCHS_BY_COUNT = {100_000: 20, 1_000_000: 4, 10_000_000: 1}
"""Number of rows -> number of epochs in a round."""


@cache
def warm_source(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """The source from which both loops of a process gather in all rounds."""
    return workload.source()


@cache
def warm_fastloader(workload: Workload) -> Iterable[Any]:
    """The FastLoader that a process uses in all rounds."""
    from fastloop import FastLoader

    return FastLoader(warm_source(workload), workload.batch_size, shuffle=True, seed=0)


def fastloader_s(workload: Workload, epochs: int) -> float:
    """Seconds of this many epochs of FastLoader."""
    batches, start = warm_fastloader(workload), now_ns()
    for _ in range(epochs):
        for _ in batches:
            pass
    return seconds_between(start, now_ns())


def gather_s(workload: Workload, epochs: int) -> float:
    """Seconds of this many epochs of the gather alone."""
    gather = PrefetchingGather(warm_source(workload))
    return sum(gather.epoch_s() for _ in range(epochs))


FASTLOADER, GATHER = "FastLoader", "the gather alone"
LOOPS = {FASTLOADER: fastloader_s, GATHER: gather_s}
LEAST_SHARE = 0.85


def growth(num_rounds: int) -> list[Line]:
    """The table's lines: rows in torch's memory, then rows in numpy's."""
    workloads = {"torch": NORMALIZED, "numpy": replace(NORMALIZED, by_numpy=True)}
    return [
        line
        for allocator, workload in workloads.items()
        for line in growth_of(num_rounds, workload, EPOCHS_BY_COUNT, allocator)
    ]


def growth_of(
    num_rounds: int, workload: Workload, epochs_by_count: dict[int, int], allocator: str
) -> list[Line]:
    """The table's lines on rows in the memory of one library."""
    with processes(list(epochs_by_count)) as call:
        calls = {
            (loop, count): partial(call[count], epochs_s, replace(workload, count=count), epochs)
            for loop, epochs_s in LOOPS.items()
            for count, epochs in epochs_by_count.items()
        }
        seconds = measure_in_rounds(num_rounds, calls)
    sample_ns = {
        (loop, count): [1e9 * value / (count * epochs_by_count[count]) for value in values]
        for (loop, count), values in seconds.items()
    }
    shares = [
        _share(count, allocator, sample_ns[GATHER, count], sample_ns[FASTLOADER, count])
        for count in epochs_by_count
    ]
    lines = [
        line
        for loop in LOOPS
        for line in _lines(loop, allocator, {n: sample_ns[loop, n] for n in epochs_by_count})
    ]
    return [*lines, *shares]


def _share(count: int, allocator: str, gather_ns: list[float], sample_ns: list[float]) -> Line:
    share = ratio_by_round(gather_ns, sample_ns)
    label = f"{allocator}'s memory: {count:,} rows, share of the gather"
    return Line(label, times(share), f"at least {LEAST_SHARE}", share.estimate >= LEAST_SHARE)


def _lines(loop: str, allocator: str, sample_ns: dict[int, list[float]]) -> list[Line]:
    fewest, *_, most = sample_ns
    label = f"{loop}, {allocator}'s memory"
    more = ratio_by_round(sample_ns[most], sample_ns[fewest])
    return [
        *(
            Line(f"{label}: {count:,} rows", figure(values, "ns a sample"))
            for count, values in sample_ns.items()
        ),
        Line(f"{label}: more time a sample", percent_more(more)),
    ]
