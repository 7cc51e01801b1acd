"""Time whole epochs: in a bare window, or in an instrumented epoch that records each wait.

The timed window consists of two clock reads around whole epochs. It includes every `iter()` and
every start of a worker. Percentiles and memory are measured in the instrumented epoch instead,
because reading the clock around each batch costs time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core.containers import is_tensor_collection
from fastloop.core.device_time import synchronize
from fastloop.core.spans import Spans, now_ns, seconds_between
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Epochs, Tree
from fastloop.processes.rank_group import barrier

WINDOW_MARGIN = 1.1
"""The number of repeats is computed for this multiple of min_window_s, because the first, short
window may be slower than the repeated one."""
Consumer = Callable[[Tree], Any]
"""A function that is called with each batch, such as a step."""


@dataclass(frozen=True)
class Window:
    """The clock readings, in nanoseconds, before and after whole epochs."""

    start_ns: int
    stop_ns: int
    sizes: tuple[list[int], ...] = ()
    """A list for each epoch, with the number of samples of each batch; empty if not counted."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return seconds_between(self.start_ns, self.stop_ns)


def count_rows(batch: Tree) -> int:
    """Number of samples of any batch, by its first tensor."""
    return next(len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def row_counter(batch: Tree) -> Callable[[Tree], int]:
    """A function that counts the samples of batches of this kind, fast enough for the window."""
    # count_rows flattens the tree, which takes 2 us for a pair of tensors. The functions below take
    # 0.2 us.
    if isinstance(batch, torch.Tensor) or is_tensor_collection(batch):
        return lambda batch: batch.shape[0]
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], torch.Tensor):
        return lambda batch: batch[0].shape[0]
    if isinstance(batch, dict):
        names = [name for name, leaf in batch.items() if isinstance(leaf, torch.Tensor)]
        if names:
            return lambda batch, name=names[0]: batch[name].shape[0]
    return count_rows


def drain(epochs: Epochs, consume: Consumer, epoch: int, device: torch.device) -> None:
    """Consume one whole epoch, untimed, to warm up pages, caches and persistent workers."""
    for batch in epochs(epoch):
        consume(batch)
    synchronize(device)


def time_epochs(
    epochs: Epochs,
    consume: Consumer,
    num_epochs: int,
    device: torch.device,
    size_of: Callable[[Tree], int],
) -> Window:
    """Consume epochs 0 to num_epochs - 1 between two clock reads, and count each batch's samples.

    size_of: returns the number of samples of a batch, see `row_counter`.
    All ranks start together, after a barrier; each rank stops after its own last batch.
    """
    # Counting takes 0.2 us a batch, or 0.6 us if count_epoch's function counts columns in a dict.
    # The numbers are checked after the window.
    sizes: tuple[list[int], ...] = tuple([] for _ in range(num_epochs))
    synchronize(device)
    barrier()
    start_ns = now_ns()
    for epoch in range(num_epochs):
        add_size = sizes[epoch].append
        for batch in epochs(epoch):
            add_size(size_of(batch))
            consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns(), sizes)


def num_repeats(seconds: float, min_window_s: float) -> int:
    """Number of times that epochs of `seconds` are repeated for a window of min_window_s."""
    if seconds >= min_window_s:
        return 1
    return math.ceil(WINDOW_MARGIN * min_window_s / seconds)


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
    """Consume epoch 0, and record the wait for each batch as a span (a named time) in `spans`.

    `consume` may record further spans. Ranks start together, after a barrier.
    """
    synchronize(device)
    barrier()
    start_ns = now_ns()
    for batch in spans.each("wait", epochs(0)):
        consume(batch)
    synchronize(device)
    return Window(start_ns, now_ns())
