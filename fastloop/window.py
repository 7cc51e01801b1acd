"""Warm up, timed window, stop; and the same epoch once more with spans around everything.

The timed window is bare: two clock reads around whole epochs. Every `iter()` and every start of a
worker lies inside, the finding of percentiles and memory lies in the instrumented epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.environment import file_mappings
from fastloop.ranks import together
from fastloop.spans import Spans, now_ns, seconds_between, synchronize
from fastloop.trees import tree_leaves
from fastloop.types import Epochs, Tree

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
    """True where a leaf lies in a mapped file, so that its bytes may never have been fetched.

    Where the system does not tell, every batch may be.
    """
    ranges = file_mappings()
    if ranges is None:
        return True
    addresses = [leaf.data_ptr() for leaf in tree_leaves(batch)]
    return any(start <= address < stop for address in addresses for start, stop in ranges)


def drain(epochs: Epochs, consume: Consumer, epoch: int, device: torch.device) -> None:
    """One whole epoch, untimed: pages, caches and persistent workers are warm after it."""
    for batch in epochs(epoch):
        consume(batch)
    synchronize(device)


def timed(epochs: Epochs, consume: Consumer, num_epochs: int, device: torch.device) -> Window:
    """Epochs 0 to num_epochs - 1 between two clock reads, and nothing else; all ranks begin
    together, and each ends when it is done."""
    synchronize(device)
    together()
    start_ns = now_ns()
    for epoch in range(num_epochs):
        for batch in epochs(epoch):
            consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns())


def replayed(batches: list[Tree], consume: Consumer, steps: int, device: torch.device) -> Window:
    """That many steps on batches that are at hand already, over and over; ranks begin together."""
    synchronize(device)
    together()
    start_ns = now_ns()
    for step in range(steps):
        consume(batches[step % len(batches)])
    synchronize(device)
    return Window(start_ns, now_ns())


def instrumented(epochs: Epochs, consume: Consumer, spans: Spans, device: torch.device) -> Window:
    """Epoch 0 with a span "wait" for each batch; whoever made the consumer may add spans of its
    own. Ranks begin together."""
    synchronize(device)
    together()
    start_ns = now_ns()
    for batch in spans.each("wait", epochs(0)):
        consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns())
