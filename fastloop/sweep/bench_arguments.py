"""Check the arguments of `bench`, `bench_all`, `explain` and `tune` for a user's loaders."""

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
    """Raise ValueError unless `trials` is `auto` or a whole number of at least 1."""
    if trials == AUTO:
        return
    if not (isinstance(trials, Integral) and trials >= 1):
        raise ValueError(f'trials={trials!r}: allowed is 1 or more, or "auto"')


def check_step(step: Any) -> None:
    """Raise TypeError unless `step` can be called, or is None for the default step."""
    if step is not None and not callable(step):
        raise TypeError(f"step={short_repr(step)}: allowed is a function of a batch")


def check_numbers(**numbers: int | None) -> None:
    """Raise ValueError unless each number is a whole number of at least 1, or None.

    numbers: the values by the name of the argument, which the error message contains.
    """
    for name, number in numbers.items():
        if number is not None and not (isinstance(number, Integral) and number >= 1):
            raise ValueError(f"{name}={number!r}: allowed is 1 or more")


def check_seconds(seconds: float | None, min_window_s: float = MIN_WINDOW_S) -> None:
    """Raise ValueError for an invalid time limit or an invalid minimum length of a window.

    seconds: the time limit, more than 0; None: no limit is given. min_window_s: in seconds, 0 or
    more, and finite.
    """
    if seconds is not None and not (isinstance(seconds, Real) and seconds > 0):
        raise ValueError(f"seconds={seconds!r}: allowed is more than 0")
    if not (isinstance(min_window_s, Real) and 0 <= min_window_s < math.inf):
        raise ValueError(f"min_window_s={min_window_s!r}: allowed is 0 or more")


def check_no_dataset(loader: object) -> None:
    """Raise ValueError if `loader` is a map-style Dataset, which yields samples, not batches."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        allowed = "pass DataLoader(dataset, batch_size=...)"
        raise ValueError(
            f"loader={type(loader).__name__}: a Dataset yields samples, not batches; {allowed}"
        )
