"""Checks of a loader's settings: each has the kind of value that is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from reprlib import repr as short_repr
from typing import Any

import torch

from fastloop.fastloader.order import PiecewiseSampler

SWITCHES = "drop_last", "pin_memory", "thread_safe", "copy", "native"


def check_kinds(loader: Any) -> None:
    """Raise TypeError or ValueError for a setting with a value of a kind that no loader uses."""
    _check_indices("sampler", loader.sampler, "indices")
    _check_indices("batch_sampler", loader._batch_sampler, "lists of indices")
    _check_function("transform", loader.transform)
    _check_function("collate_fn", loader._collate_fn)
    if not isinstance(loader.generator, torch.Generator | None):
        value = short_repr(loader.generator)
        raise TypeError(f"generator={value}: allowed are a torch.Generator and None")
    for name in SWITCHES:
        value = getattr(loader, name)
        # 0 and 1 are equal to these, and allowed, as in DataLoader.
        if value not in (False, True, None):
            raise ValueError(f"{name}={short_repr(value)}: allowed are True and False")


def check_worker_settings(timeout: Any, worker_init_fn: Any) -> None:
    """Raise TypeError or ValueError for values that DataLoader's processes can't be given."""
    if not isinstance(timeout, int | float) or not 0 <= timeout < math.inf:
        raise ValueError(f"timeout={timeout!r}: allowed are seconds, and 0 for no limit")
    _check_function("worker_init_fn", worker_init_fn)


def check_epoch(epoch: Any) -> None:
    """Raise ValueError for a value that is no number of an epoch."""
    if not hasattr(epoch, "__index__") or epoch < 0:
        raise ValueError(f"epoch={short_repr(epoch)}: allowed is 0 or more")


def _check_indices(name: str, value: Any, items: str) -> None:
    is_text = isinstance(value, str | bytes)
    is_iterable = isinstance(value, Iterable | PiecewiseSampler) or hasattr(value, "__getitem__")
    if value is not None and (is_text or not is_iterable):
        raise TypeError(f"{name}={short_repr(value)}: allowed are an iterable of {items} and None")


def _check_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise TypeError(f"{name}={short_repr(value)}: allowed are a function and None")
