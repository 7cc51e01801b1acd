"""Decoding of all samples of a dataset in their order, by several processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import DataLoader

from fastloop.core.protocols import Samples
from fastloop.core.types import Unsupported
from fastloop.processes.parent_death import tie_worker_to_parent


def decode_in_order(
    samples: Samples, batch_size: int, collate_fn: Callable[[list], Any], num_workers: int
) -> Iterable[Any]:
    """Batches of all samples in order, decoded in num_workers processes with a bounded number of
    batches in flight. Raises Unsupported if those processes could not import the samples' class.
    """
    context = _decoding_context() if num_workers else None
    # The server imports torch and the dataset's module once, instead of every process.
    if context == "forkserver":
        preloaded = ["__main__", "torch", type(samples).__module__]
        multiprocessing.get_context(context).set_forkserver_preload(preloaded)
    return DataLoader(
        samples,  # pyright: ignore[reportArgumentType]
        batch_size=batch_size,
        collate_fn=collate_fn,
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=tie_worker_to_parent,
    )


def _decoding_context() -> str:
    """The start method of processes that decode."""
    # A new process imports the classes of the dataset. Those that a notebook, `python -c` or a
    # script read from stdin defines can't be imported: only a fork has them, which is also
    # DataLoader's default on Linux.
    methods = multiprocessing.get_all_start_methods()
    if os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        return "forkserver" if "forkserver" in methods else "spawn"
    if sys.platform != "linux":
        reason = "other processes can't import what a notebook defines"
        raise Unsupported(f"num_workers: {reason}; put it in a module, or use num_workers=0")
    return "fork"
