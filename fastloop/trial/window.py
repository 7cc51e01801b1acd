"""The warm-up epoch, the timed window, and an instrumented epoch with a span around each wait.

The timed window is bare: two clock reads around whole epochs. It includes every `iter()` and every
start of a worker. Percentiles and memory are measured in the instrumented epoch instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core.machine import file_mappings
from fastloop.core.spans import Spans, now_ns, seconds_between, synchronize
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Epochs, Tree
from fastloop.processes.rank_group import barrier

Consumer = Callable[[Tree], Any]


@dataclass(frozen=True)
class Window:
    """Raw clock values of whole epochs."""

    start_ns: int
    stop_ns: int

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return seconds_between(self.start_ns, self.stop_ns)


def may_be_unread(batch: Tree) -> bool:
    """True if a leaf is backed by a mapped file, so that its bytes may never have been fetched.

    True for every batch on systems that do not list a process's mappings.
    """
    ranges = file_mappings()
    if ranges is None:
        return True
    addresses = [leaf.data_ptr() for leaf in tree_leaves(batch)]
    return any(start <= address < stop for address in addresses for start, stop in ranges)


def drain(epochs: Epochs, consume: Consumer, epoch: int, device: torch.device) -> None:
    """Consume one whole epoch, untimed, to warm up pages, caches and persistent workers."""
    for batch in epochs(epoch):
        consume(batch)
    synchronize(device)


def time_epochs(epochs: Epochs, consume: Consumer, num_epochs: int, device: torch.device) -> Window:
    """Consume epochs 0 to num_epochs - 1 between two clock reads, with nothing else in between.

    All ranks start together, after a barrier; each one stops when it is done itself.
    """
    synchronize(device)
    barrier()
    start_ns = now_ns()
    for epoch in range(num_epochs):
        for batch in epochs(epoch):
            consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns())


def time_replay(batches: list[Tree], consume: Consumer, steps: int, device: torch.device) -> Window:
    """Time `steps` steps that cycle over batches already on the device; ranks start together."""
    synchronize(device)
    barrier()
    start_ns = now_ns()
    for step in range(steps):
        consume(batches[step % len(batches)])
    synchronize(device)
    return Window(start_ns, now_ns())


def time_instrumented_epoch(
    epochs: Epochs, consume: Consumer, spans: Spans, device: torch.device
) -> Window:
    """Consume epoch 0 with a span "wait" for each batch; the consumer may record further spans.

    Ranks start together, after a barrier.
    """
    synchronize(device)
    barrier()
    start_ns = now_ns()
    for batch in spans.each("wait", epochs(0)):
        consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns())
