"""DataLoader's parameters for worker processes, and FastLoader's substitutes for them."""

from __future__ import annotations

import warnings
from typing import Any

import torch

IN_PLACE = {
    "timeout": (0, "batches are waited for without limit, and Ctrl-C ends an epoch"),
    "worker_init_fn": (
        None,
        "it is called in worker processes only; (seed, epoch, index) seeds each sample, see"
        " fastloop.sample_seed",
    ),
    "multiprocessing_context": (None, "there are threads, and no processes"),
    "persistent_workers": (
        False,
        "threads, and an IterableDataset's processes, start with each epoch",
    ),
    "pin_memory_device": ("", "device= delivers batches there, from pinned memory"),
    "in_order": (True, "batches always come in order"),
}
"""Each parameter's default, and FastLoader's substitute as the warning tells it."""


def warn_of_settings(*values: Any) -> None:
    """Warn about parameters of IN_PLACE that differ from their defaults; values: in that
    sequence.
    """
    for (name, (default, instead)), value in zip(IN_PLACE.items(), values, strict=True):
        if value != default and value is not None:
            text = f"{name}={value!r} has no effect in FastLoader: {instead}"
            warnings.warn(text, UserWarning, stacklevel=3)


def pins_memory(pin_memory: bool) -> bool:
    """True if batches are to be delivered in pinned memory."""
    return bool(pin_memory) and torch.cuda.is_available()


def warn_of_pinning(pin_memory: bool) -> None:
    """Warn, as DataLoader does, that there is no CUDA device."""
    if pin_memory and not torch.cuda.is_available():
        text = "pin_memory=True has no effect: there is no CUDA device"
        warnings.warn(text, UserWarning, stacklevel=3)
