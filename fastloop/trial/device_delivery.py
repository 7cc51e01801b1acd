"""Deliver batches from a loader to the step: prefetching, pinned buffers, and placement.

With `device_prefetch` a batch is loaded and delivered ahead of the loop; without it, by the loop.
`pinned_buffers=N` are page-locked buffers that are allocated once and reused for all batches, while
a DataLoader's `pin_memory` allocates page-locked memory for every batch, from torch's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count, cycle
from typing import Any

import torch

from fastloop.core.move_tensors import map_tensors
from fastloop.core.plan import LoaderProbe, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.data.cropped_dataset import number_samples
from fastloop.data.same_data import check_placed
from fastloop.trial.job import Job
from fastloop.trial.prefetch.process import prefetch_by_process
from fastloop.trial.prefetch.stream import prefetch_by_stream
from fastloop.trial.prefetch.thread import prefetch_by_thread

empty_pinned = partial(torch.empty, dtype=torch.uint8, pin_memory=True)


def full_delivery(job: Job, prepared: PreparedData, device: torch.device) -> Callable[[Tree], Tree]:
    """A function from a host batch to a complete batch on the device.

    It copies the batch to a pinned buffer if there are any, places it on the device, and does the
    part of the collate that is left for the device.
    """
    place = job.placement.to(device)
    finish = job.collate.finish
    if job.pinned_buffers:
        place = place_through_pinned(place, job.pinned_buffers, device)
    # The default collate leaves nothing to finish. A wrapper would cost a call for each batch of
    # the window.
    if traits_of(CollateTraits, job.collate).is_default:
        return place
    scale = prepared.dataset.uint8_scale
    return lambda batch: finish(place(batch), scale)


def loader_opener(
    job: Job, prepared: PreparedData, plan: Plan, device: torch.device
) -> Callable[[], AbstractContextManager[Epochs]]:
    """A function that opens the loader; with device_prefetch its batches are on the device."""
    # Prefetching does all of full_delivery, so that a batch is finished on the CUDA stream that
    # has copied it. A transform on the device belongs to the step, and stays in the loop.
    open_ = partial(job.loader.open, *number_samples(prepared, plan))
    if plan.probe is not None:
        open_ = partial(_open_watched, open_, plan.probe)
    if not job.device_prefetch:
        return open_
    deliver = check_placed(full_delivery(job, prepared, device))
    ahead = job.device_prefetch
    if job.device_prefetch_by == "process":
        return partial(prefetch_by_process, open_, deliver, ahead, device, job.start_method())
    prefetch = prefetch_by_stream if job.device_prefetch_by == "stream" else prefetch_by_thread
    return partial(prefetch, open_, deliver, ahead, device)


@contextmanager
def _open_watched(
    open_: Callable[[], AbstractContextManager[Epochs]], probe: LoaderProbe
) -> Iterator[Epochs]:
    """Open a loader under the probe, in the process that opens it; yields its epochs."""
    # The probe watches from after the opening, because a loader may import its DataLoader only
    # then. That is early enough for workers, which start with an epoch.
    with open_() as epochs, probe.watch_loaders():
        yield epochs


class PinnedBuffer:
    """Memory for the tensors of one batch; grows for a larger batch, and never shrinks.

    empty: returns a uint8 tensor with a number of bytes.
    """

    def __init__(self, empty: Callable[[int], torch.Tensor] = empty_pinned) -> None:
        self._empty = empty
        self._memory: list[torch.Tensor] = []
        self.copied: Any = None
        """CUDA event after the last copy from this buffer; None before the first."""

    def fill(self, batch: Tree) -> Tree:
        """Copy the batch into this memory; tensors that are not on the host stay as they are."""
        indices = count()
        return map_tensors(lambda leaf: self._copy_leaf(next(indices), leaf), batch)

    def _copy_leaf(self, index: int, leaf: torch.Tensor) -> torch.Tensor:
        """Copy a tensor on the host into this buffer's memory; returns any other tensor as it
        is."""
        if leaf.device.type != "cpu":
            return leaf
        while len(self._memory) <= index:
            self._memory.append(self._empty(0))
        if len(self._memory[index]) < leaf.nbytes:
            self._memory[index] = self._empty(leaf.nbytes)
        memory = self._memory[index][: leaf.nbytes]
        return memory.view(leaf.dtype).view(leaf.shape).copy_(leaf)


def place_through_pinned(
    place: Callable[[Tree], Tree], buffers: int, device: torch.device
) -> Callable[[Tree], Tree]:
    """A function that copies a batch into one of `buffers` page-locked buffers, then calls `place`.

    A buffer is reused once the device has finished copying from it; until then the host waits. Only
    one thread at a time may call the function.
    """
    ring = cycle([PinnedBuffer() for _ in range(buffers)])

    def call(batch: Tree) -> Tree:
        buffer = next(ring)
        if buffer.copied is not None:
            buffer.copied.synchronize()
        placed = place(buffer.fill(batch))
        buffer.copied = torch.cuda.current_stream(device).record_event()
        return placed

    return call
