"""The machine's own limit: how fast could rows of this size be gathered at all, here and now?

The best of index_select(out=) and np.take(out=, mode="clip"), each into a buffer of a batch and
into one that stays in cache, random rows, one thread a usable core. On one machine these range from
77 to 182 thousand rows of 150 KB a second, so that a single variant would not be a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fastloop.limits import usable_cores
from fastloop.ranks import local_world_size
from fastloop.spans import bandwidth, now_ns, seconds_between
from fastloop.torch_threads import one_torch_thread

MAX_SOURCE_BYTES = 256 << 20
CACHED_BUFFER_BYTES = 512 << 10
SHORTEST_S, LONGEST_S = 0.2, 1.0
"""The yardstick takes as long as the window that it stands beside, within these."""
PINNED_NS = 250_000_000


@dataclass(frozen=True)
class Gatherer:
    """One thread's way to gather: a buffer of its own, and indices drawn before the clock runs."""

    gather: Callable[[Any], Any]
    picks: list[Any]
    out: np.ndarray

    def run(self, stop_ns: int, reads: bool) -> int:
        """Rows gathered until then; with `reads` every gathered byte is read once more."""
        words = self.out.reshape(-1)[: self.out.size // 8 * 8].view(np.int64)
        gathered = 0
        while True:
            for picks in self.picks:
                self.gather(picks)
                if reads:
                    words.sum()
                gathered += len(picks)
                if now_ns() >= stop_ns:
                    return gathered


def limit_rows_per_s(
    num_rows: int,
    row_nbytes: int,
    batch_size: int,
    device: torch.device,
    reads: bool,
    window_s: float = LONGEST_S,
) -> float:
    """Rows a second that this machine can gather; on CUDA no more than it can copy from pinned
    memory.

    `reads`: as the step does where its batches come unread. It takes about as long as window_s,
    but at least 0.2 s and at most 1 s, and 256 MiB.
    """
    budget_ns = int(1e9 * min(LONGEST_S, max(SHORTEST_S, window_s)))
    num_rows = max(1, min(num_rows, MAX_SOURCE_BYTES // row_nbytes))
    source = np.ones((num_rows, row_nbytes), np.uint8)
    sizes = {
        min(rows, num_rows) for rows in (batch_size, max(1, CACHED_BUFFER_BYTES // row_nbytes))
    }
    variants = [
        partial(make, source, rows) for rows in sorted(sizes) for make in (_index_select, _np_take)
    ]
    with one_torch_thread():
        best = max(_rate(variant, budget_ns // len(variants), reads) for variant in variants)
    if device.type == "cuda":
        return min(best, _pinned_copy_rows_per_s(row_nbytes, batch_size, device))
    return best


def _indices(source: np.ndarray, buffer_rows: int, seed: int) -> np.ndarray:
    rounds = max(1, min(len(source), 1 << 16) // buffer_rows)
    return np.random.default_rng(seed).integers(len(source), size=(rounds, buffer_rows))


def _index_select(source: np.ndarray, buffer_rows: int, seed: int) -> Gatherer:
    rows, out = (
        torch.from_numpy(source),
        torch.zeros((buffer_rows, source.shape[1]), dtype=torch.uint8),
    )
    picks = list(torch.from_numpy(_indices(source, buffer_rows, seed)))
    return Gatherer(lambda index: torch.index_select(rows, 0, index, out=out), picks, out.numpy())


def _np_take(source: np.ndarray, buffer_rows: int, seed: int) -> Gatherer:
    out = np.zeros((buffer_rows, source.shape[1]), np.uint8)
    picks = list(_indices(source, buffer_rows, seed))
    # mode="clip": the default checks every index through a temporary copy of the whole result
    return Gatherer(lambda index: np.take(source, index, axis=0, out=out, mode="clip"), picks, out)


def _rate(make: Callable[[int], Gatherer], budget_ns: int, reads: bool) -> float:
    """Rows a second of one gatherer a usable core, together; several ranks share the cores."""
    count = max(1, usable_cores() // local_world_size())
    gatherers = [make(seed) for seed in range(count)]
    with ThreadPoolExecutor(len(gatherers)) as pool:
        start_ns = now_ns()
        running = [pool.submit(one.run, start_ns + budget_ns, reads) for one in gatherers]
        gathered = sum(future.result() for future in running)
        return gathered / seconds_between(start_ns, now_ns())


def _pinned_copy_rows_per_s(row_nbytes: int, batch_size: int, device: torch.device) -> float:
    host = torch.ones((batch_size, row_nbytes), dtype=torch.uint8).pin_memory()
    there = torch.empty_like(host, device=device)

    def copy() -> int:
        there.copy_(host, non_blocking=True)
        return host.nbytes

    return bandwidth(copy, device, PINNED_NS) / row_nbytes
