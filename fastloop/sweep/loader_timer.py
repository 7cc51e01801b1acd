"""Windows of a user's loader in this process: cut short, repeated, timed and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from fastloop.core.spans import synchronize
from fastloop.core.types import Epochs, Invalid, Tree
from fastloop.trial.window import count_rows, num_repeats, row_counter, time_epochs


@dataclass(frozen=True, kw_only=True)
class LoaderTimer:
    """Windows of a warm loader."""

    epochs: Epochs
    consume: Callable[[Tree], Any]
    num_epochs: int
    device: torch.device
    samples: int
    """Number of samples that each epoch must have."""
    count: Callable[[Tree], int]
    repeats: int = 1
    """Number of times that a window repeats the epochs."""

    def time_window(self) -> float:
        """Seconds of num_epochs epochs; raises Invalid for a wrong number of samples."""
        # Counted after the clock has stopped, as in a trial: a loader that delivers too little in a
        # later epoch would seem fast.
        num_epochs = self.num_epochs * self.repeats
        window = time_epochs(self.epochs, self.consume, num_epochs, self.device, self.count)
        for epoch, sizes in enumerate(window.sizes):
            if sum(sizes) != self.samples:
                counts = f"{sum(sizes):,} samples in epoch {epoch} of a window"
                raise Invalid(f"{counts}, {self.samples:,} in the first epoch of all")
        return window.seconds / self.repeats


def warm_timer(
    epochs: Epochs,
    consume: Callable[[Tree], Any],
    num_epochs: int,
    device: torch.device,
    samples: int,
    min_window_s: float,
) -> LoaderTimer:
    """A timer of a loader, which one epoch has warmed up.

    min_window_s: the epochs are repeated until a window takes this long; 0: they are not repeated,
    and no window is run to find out how often.
    """
    count = count_rows
    # The quickest function that counts such batches is found here, outside of the windows.
    for batch in epochs(0):
        count = row_counter(batch)
        consume(batch)
    synchronize(device)
    settings: dict[str, Any] = {"epochs": epochs, "consume": consume, "num_epochs": num_epochs}
    settings |= {"device": device, "samples": samples, "count": count}
    repeats = 1
    # One window tells how long an epoch takes without the warm-up.
    if min_window_s:
        repeats = num_repeats(LoaderTimer(**settings).time_window(), min_window_s)
    return LoaderTimer(**settings, repeats=repeats)


def first_batches(epochs: Epochs, count: int | None) -> Epochs:
    """Epochs that end after `count` batches; None: whole epochs."""
    if count is None:
        return epochs

    def cut(number: int) -> Iterator[Tree]:
        return islice(iter(epochs(number)), count)

    return cut
