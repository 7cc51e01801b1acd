"""The machine's limits, measured next to each trial: gathering rows, and steps without loading.

The gather limit is how fast this machine can gather random rows of the given size right now: the
best of index_select(out=) and np.take(out=, mode="clip"), each into a buffer of one batch and into
one that stays in cache, with one thread per usable core. On one machine these range from 77 to 182
thousand rows of 150 KB per second, so that a single variant would not be a limit.

The replay limit is the rate of the same steps on batches that are already on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from fastloop.core import stats
from fastloop.core.cgroup import usable_cores
from fastloop.core.plan import Session
from fastloop.core.spans import bandwidth, now_ns, seconds_between
from fastloop.core.torch_threads import one_torch_thread
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Tree
from fastloop.processes.rank_group import all_gather, local_world_size
from fastloop.trial.window import Consumer, time_replay

MAX_SOURCE_BYTES = 256 << 20
CACHED_BUFFER_BYTES = 512 << 10
MIN_BUDGET_S, MAX_BUDGET_S = 0.2, 1.0
"""Measuring the gather limit takes as long as the timed window, within these bounds."""
PINNED_COPY_NS = 250_000_000


@dataclass(frozen=True)
class Gatherer:
    """Gather function of one thread, its output buffer, and indices that are drawn in advance."""

    gather: Callable[[Any], Any]
    index_batches: list[Any]
    out: np.ndarray

    def run(self, stop_ns: int, reads: bool) -> int:
        """Gather until `stop_ns`, and return the number of rows; `reads` reads each byte again."""
        words = self.out.reshape(-1)[: self.out.size // 8 * 8].view(np.int64)
        num_rows = 0
        while True:
            for indices in self.index_batches:
                self.gather(indices)
                if reads:
                    words.sum()
                num_rows += len(indices)
                if now_ns() >= stop_ns:
                    return num_rows


def limit_rows_per_s(
    num_rows: int,
    row_nbytes: int,
    batch_size: int,
    device: torch.device,
    reads: bool,
    window_s: float = MAX_BUDGET_S,
) -> float:
    """Rows per second that this machine can gather; on CUDA at most what it can copy from pinned
    memory.

    reads: read every gathered byte once more, as the step does for batches whose bytes may be
    unread. Measuring takes about window_s, but 0.2 to 1 s, and at most 256 MiB of memory.
    """
    budget_ns = int(1e9 * min(MAX_BUDGET_S, max(MIN_BUDGET_S, window_s)))
    num_rows = max(1, min(num_rows, MAX_SOURCE_BYTES // row_nbytes))
    source = np.ones((num_rows, row_nbytes), np.uint8)
    sizes = {
        min(rows, num_rows) for rows in (batch_size, max(1, CACHED_BUFFER_BYTES // row_nbytes))
    }
    variants = [
        partial(make, source, rows) for rows in sorted(sizes) for make in (_index_select, _np_take)
    ]
    with one_torch_thread():
        best = max(_gather_rate(variant, budget_ns // len(variants), reads) for variant in variants)
    if device.type == "cuda":
        return min(best, _copy_rate(row_nbytes, batch_size, device))
    return best


def _random_indices(source: np.ndarray, buffer_rows: int, seed: int) -> np.ndarray:
    num_batches = max(1, min(len(source), 1 << 16) // buffer_rows)
    return np.random.default_rng(seed).integers(len(source), size=(num_batches, buffer_rows))


def _index_select(source: np.ndarray, buffer_rows: int, seed: int) -> Gatherer:
    rows = torch.from_numpy(source)
    out = torch.zeros((buffer_rows, source.shape[1]), dtype=torch.uint8)
    batches = list(torch.from_numpy(_random_indices(source, buffer_rows, seed)))
    return Gatherer(lambda index: torch.index_select(rows, 0, index, out=out), batches, out.numpy())


def _np_take(source: np.ndarray, buffer_rows: int, seed: int) -> Gatherer:
    out = np.zeros((buffer_rows, source.shape[1]), np.uint8)
    batches = list(_random_indices(source, buffer_rows, seed))
    # mode="clip": the default mode checks every index by way of a temporary copy of the result
    return Gatherer(
        lambda index: np.take(source, index, axis=0, out=out, mode="clip"), batches, out
    )


def _gather_rate(make: Callable[[int], Gatherer], budget_ns: int, reads: bool) -> float:
    """Rows per second of one gatherer per usable core; the ranks of a node share its cores."""
    count = max(1, usable_cores() // local_world_size())
    gatherers = [make(seed) for seed in range(count)]
    with ThreadPoolExecutor(len(gatherers)) as pool:
        start_ns = now_ns()
        futures = [pool.submit(gatherer.run, start_ns + budget_ns, reads) for gatherer in gatherers]
        num_rows = sum(future.result() for future in futures)
        return num_rows / seconds_between(start_ns, now_ns())


def _copy_rate(row_nbytes: int, batch_size: int, device: torch.device) -> float:
    """Rows per second of copies from pinned memory to the device."""
    host = torch.ones((batch_size, row_nbytes), dtype=torch.uint8).pin_memory()
    on_device = torch.empty_like(host, device=device)

    def copy() -> int:
        on_device.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, PINNED_COPY_NS) / row_nbytes


MAX_REPLAY_STEPS, MAX_REPLAY_S, MIN_REPLAY_STEPS = 300, 2.0, 3
"""A replay takes 300 steps, or fewer where these would take longer than 2 s."""
MAX_REPLAY_BATCHES = 32
STEP_ROUNDS = 5


def num_replay_steps(step_s: float) -> int:
    """Number of steps to replay, given the seconds that one takes."""
    return max(MIN_REPLAY_STEPS, min(MAX_REPLAY_STEPS, int(MAX_REPLAY_S / step_s)))


def replay_batches(
    batches: Iterable[Tree], place: Consumer, steps: int = MAX_REPLAY_BATCHES
) -> list[Tree]:
    """Batches of full size on the device for that many steps; equally many on each rank."""
    placed = [place(batch) for batch in islice(batches, min(MAX_REPLAY_BATCHES, steps))]
    placed = [batch for batch in placed if _batch_size(batch) == _batch_size(placed[0])]
    return placed[: min(all_gather(len(placed)))]


def replay_limit(session: Session, batches: list[Tree], device: torch.device) -> float:
    """Samples per second of the same steps on batches that are on the device already."""
    consume, _ = session.start(lambda batch: batch)
    warm = time_replay(batches, consume, len(batches), device)
    steps = num_replay_steps(max(all_gather(warm.seconds)) / len(batches))
    return _batch_size(batches[0]) * steps / time_replay(batches, consume, steps, device).seconds


def step_seconds(
    session: Session, ddp: DistributedDataParallel, batches: list[Tree], device: torch.device
) -> tuple[float, float]:
    """Median seconds of a step that averages gradients over ranks, and of one that does not."""
    consume, _ = session.start(lambda batch: batch)
    averaged, local = [], []
    count = len(batches)
    for _ in range(STEP_ROUNDS):  # interleaved, so that machine noise affects both equally
        averaged.append(time_replay(batches, consume, count, device).seconds / count)
        with ddp.no_sync():
            local.append(time_replay(batches, consume, count, device).seconds / count)
    return stats.median(averaged), stats.median(local)


def _batch_size(batch: Tree) -> int:
    return len(tree_leaves(batch)[0])
