"""Time per sample of 10^5 to 10^7 rows: does it grow, and does it grow in np.take alone?

Measured are FastLoader, and one thread a core that does nothing but np.take, with the order drawn
beforehand and memory of its own: growth of the latter is the machine's. Each number of rows has a
process of its own that lives through all rounds, for both; see README.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from threading import Thread
from typing import Any

import numpy as np
import torch

from experiments.peers.lines import Line, figure, percent_more, ratio_by_round
from experiments.peers.processes import measure_in_rounds, processes
from experiments.peers.workloads import NORMALIZED, Workload
from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, seconds_between

EPOCHS_BY_COUNT = {100_000: 20, 1_000_000: 4, 10_000_000: 1}
"""Epochs of a round, by the number of rows."""


@dataclass(frozen=True)
class TakeLoop:
    """np.take by one thread a core, over the columns of FastLoader's own source."""

    columns: tuple[np.ndarray, ...]

    def epoch_s(self) -> float:
        """Seconds of an epoch whose order was drawn before."""
        shares = np.array_split(np.random.permutation(len(self.columns[0])), usable_cores())
        threads = [Thread(target=self._take, args=(share,)) for share in shares]
        start = now_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seconds_between(start, now_ns())

    def _take(self, share: np.ndarray) -> None:
        from fastloop.fastloader.tuning import GROUP_BYTES

        num_rows = GROUP_BYTES // self.columns[0][0].nbytes
        buffers = [np.zeros((num_rows, *column.shape[1:]), column.dtype) for column in self.columns]
        for start in range(0, len(share), num_rows):
            indices = share[start : start + num_rows]
            for column, buffer in zip(self.columns, buffers, strict=True):
                column.take(indices, axis=0, out=buffer[: len(indices)], mode="clip")


@cache
def warm_source(workload: Workload) -> tuple[torch.Tensor, torch.Tensor]:
    """The source of all rounds of a process, from which both loops gather."""
    return workload.source()


@cache
def warm_fastloader(workload: Workload) -> Iterable[Any]:
    from fastloop import FastLoader

    return FastLoader(warm_source(workload), workload.batch_size, shuffle=True)


def fastloader_s(workload: Workload, epochs: int) -> float:
    batches, start = warm_fastloader(workload), now_ns()
    for _ in range(epochs):
        for _ in batches:
            pass
    return seconds_between(start, now_ns())


def take_s(workload: Workload, epochs: int) -> float:
    loop = TakeLoop(tuple(column.numpy() for column in warm_source(workload)))
    return sum(loop.epoch_s() for _ in range(epochs))


LOOPS = {"FastLoader": fastloader_s, "np.take alone": take_s}


def growth(num_rounds: int) -> list[Line]:
    """The lines of rows in torch's memory, then of rows in numpy's."""
    workloads = {"torch": NORMALIZED, "numpy": replace(NORMALIZED, by_numpy=True)}
    return [
        line
        for allocator, workload in workloads.items()
        for line in growth_of(num_rounds, workload, EPOCHS_BY_COUNT, allocator)
    ]


def growth_of(
    num_rounds: int, workload: Workload, epochs_by_count: dict[int, int], allocator: str
) -> list[Line]:
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
    return [
        line
        for loop in LOOPS
        for line in _lines(loop, allocator, {n: sample_ns[loop, n] for n in epochs_by_count})
    ]


def _lines(loop: str, allocator: str, sample_ns: dict[int, list[float]]) -> list[Line]:
    fewest, *_, most = sample_ns
    more = ratio_by_round(sample_ns[most], sample_ns[fewest])
    label = f"{loop}, {allocator}'s memory"
    bar = ("within 15 %", more.estimate <= 1.15) if loop == "FastLoader" else ()
    return [
        *(
            Line(f"{label}: {count:,} rows", figure(values, "ns a sample"))
            for count, values in sample_ns.items()
        ),
        Line(f"{label}: more time a sample", percent_more(more), *bar),
    ]
