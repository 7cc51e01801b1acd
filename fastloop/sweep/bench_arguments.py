"""Checks of the arguments of `bench`, `bench_all`, `explain` and `tune` for a user's loaders."""

from __future__ import annotations

import math
from numbers import Integral, Real
from reprlib import repr as short_repr
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from fastloop.core.auto_trials import AUTO
from fastloop.core.bounds import Trials
from fastloop.trial.job_settings import MIN_WINDOW_S


def check_trials(trials: Trials) -> None:
    """Raise ValueError for anything but `auto` and a whole number from 1 on."""
    if trials == AUTO:
        return
    if not (isinstance(trials, Integral) and trials >= 1):
        raise ValueError(f'trials={trials!r}: allowed is 1 or more, or "auto"')


def check_step(step: Any) -> None:
    """Raise TypeError for anything but a function; None stands for no step."""
    if step is not None and not callable(step):
        raise TypeError(f"step={short_repr(step)}: allowed is a function of a batch")


def check_numbers(**numbers: int | None) -> None:
    """Raise ValueError for anything but a whole number from 1 on; None stands for no number."""
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ValueError(f"{name}={number!r}: allowed is 1 or more")


def check_seconds(seconds: float | None, min_window_s: float = MIN_WINDOW_S) -> None:
    """Raise ValueError for times that `bench`, `bench_all` and `explain` can't keep."""
    if seconds is not None and not (isinstance(seconds, Real) and seconds > 0):
        raise ValueError(f"seconds={seconds!r}: allowed is more than 0")
    if not (isinstance(min_window_s, Real) and 0 <= min_window_s < math.inf):
        raise ValueError(f"min_window_s={min_window_s!r}: allowed is 0 or more")


def check_no_dataset(loader: object) -> None:
    """Raise ValueError for a map-style Dataset of torch: its items are samples, not batches."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        allowed = "pass DataLoader(dataset, batch_size=...)"
        raise ValueError(
            f"loader={type(loader).__name__}: a Dataset yields samples, not batches; {allowed}"
        )
