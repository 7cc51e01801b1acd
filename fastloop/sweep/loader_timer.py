"""The timer of a user's loader in this process, `LoaderTimer`, and the epochs that it times.

A window is the stretch of time between two clock reads in which whole epochs are delivered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastloop.core.device_time import synchronize
from fastloop.core.move_tensors import map_tensors
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.trees import read_bytes
from fastloop.core.types import Epochs, Invalid, Tree
from fastloop.data.batch_counts import FirstBatches
from fastloop.options.loader.user import iterable_epochs
from fastloop.sweep.bench_arguments import check_no_dataset
from fastloop.trial.window import count_rows, num_repeats, row_counter, time_epochs

SURELY_LONG = 100
"""If the warm-up epoch takes this many times min_window_s, a window surely needs no repeats. No
window is then timed to count them."""
SizeOf = Callable[[Tree], int]
"""Returns the number of samples of a batch."""
LoaderLike = Iterable[Tree] | Callable[[int], Iterable[Tree]] | Callable[[], Iterable[Tree]]
"""An iterable of batches, or a function that returns such an iterable for an epoch.

The function is called with the epoch's number if it requires an argument. An iterable is iterated
over once per epoch. If the iterable, one of its samplers or its dataset has a method `set_epoch`,
this method is called before each epoch."""


@dataclass(frozen=True, kw_only=True)
class LoaderTimer:
    """Times windows of a loader, after `warm_timer` has warmed the loader up."""

    epochs: Epochs
    """Returns the batches of the epoch with a given number."""
    consume: Callable[[Tree], Any]
    """The step, which is called with each batch."""
    num_epochs: int
    """Number of epochs in a trial."""
    device: torch.device
    """The device that must have finished its work before the clock is read."""
    samples: int
    """Number of samples that each epoch must have."""
    size_of: SizeOf | None = None
    """Counts the samples of a batch; None: `warm_timer` chooses a function by the first batch."""
    repeats: int = 1
    """Number of times that a window repeats the epochs."""
    window_s: float = 0.0
    """Approximate seconds of a window."""

    def time_window(self) -> float:
        """Time a window, and return the mean seconds of its repeats, each of num_epochs epochs.

        Raises Invalid for a wrong number of samples.
        """
        # A loader that delivers too few samples in a later epoch would seem fast. The numbers are
        # compared after the clock has stopped, as in a trial.
        num_epochs = self.num_epochs * self.repeats
        size_of = self.size_of or count_rows
        window = time_epochs(self.epochs, self.consume, num_epochs, self.device, size_of)
        for epoch, sizes in enumerate(window.sizes):
            if sum(sizes) != self.samples:
                counts = f"{sum(sizes):,} samples in epoch {epoch} of a window"
                raise Invalid(f"{counts}, {self.samples:,} in the first epoch of all")
        return window.seconds / self.repeats


def warm_timer(cold: LoaderTimer, min_window_s: float) -> LoaderTimer:
    """Warm the loader up by one epoch, and return its timer with the number of repeats of a window.

    cold: the timer without repeats. min_window_s: minimum seconds of a window, for which the epochs
    are repeated; 0: the epochs are not repeated, and no window is run to count repeats.
    """
    size_of, start_ns = cold.size_of, now_ns()
    # The first batch decides which function counts samples fastest. It is chosen here, outside of
    # the windows.
    for batch in cold.epochs(0):
        size_of = size_of or row_counter(batch)
        cold.consume(batch)
    synchronize(cold.device)
    warm_s = seconds_between(start_ns, now_ns())
    timer = replace(cold, size_of=size_of, window_s=cold.num_epochs * warm_s)
    # One window shows how long an epoch takes once the loader is warm. If the warm-up took far
    # longer than min_window_s, no repeats are needed, and that window would only take time.
    if not min_window_s or warm_s >= SURELY_LONG * min_window_s:
        return timer
    window_s = timer.time_window()
    repeats = num_repeats(window_s, min_window_s)
    return replace(timer, repeats=repeats, window_s=repeats * window_s)


def epochs_of(loader: LoaderLike) -> Epochs:
    """A function from an epoch's number to the batches that the loader yields in that epoch.

    Raises ValueError for an iterator, which has one epoch only, for a Dataset, which yields
    samples, and for any other object that is not a loader.
    """
    if isinstance(loader, Iterator):
        raise ValueError("an iterator has one epoch only; pass the iterable that it comes from")
    check_no_dataset(loader)
    # iter() also accepts an object that has __getitem__ without __iter__.
    if isinstance(loader, Iterable) or hasattr(loader, "__getitem__"):
        return iterable_epochs(loader)  # pyright: ignore[reportArgumentType] - iter() takes both
    if not callable(loader):
        raise ValueError(f"a loader is an iterable or a function, not {type(loader).__name__}")
    return function_epochs(loader)


def function_epochs(make_epoch: Callable[..., Iterable[Tree]]) -> Epochs:
    """The epochs that a function makes; it gets the epoch's number if it requires an argument.

    A function with `*args`, or without a signature, gets the number, too.

    >>> [*function_epochs(lambda: [1, 2])(5)], [*function_epochs(lambda number: [number])(5)]
    ([1, 2], [5])
    """
    try:
        parameters = inspect.signature(make_epoch).parameters.values()
    # Some functions that are written in C have no signature.
    except ValueError:
        return make_epoch
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes_number = any(
        each.kind is each.VAR_POSITIONAL or (each.kind in positional and each.default is each.empty)
        for each in parameters
    )
    return make_epoch if takes_number else lambda _: make_epoch()


def first_batches(epochs: Epochs, count: int | None) -> Epochs:
    """Epochs that end after `count` batches; None: whole epochs."""
    return epochs if count is None else lambda number: FirstBatches(epochs(number), count)


def default_step(device: torch.device) -> Callable[[Tree], Any]:
    """A step that reads all bytes of a batch on the CPU, or moves the batch to another device."""
    if device.type == "cpu":
        return read_bytes
    return lambda batch: map_tensors(lambda tensor: tensor.to(device), batch, device)
