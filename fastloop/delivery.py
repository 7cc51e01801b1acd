"""What a job puts between its loader and the step: the way to the device, and what runs ahead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch

from fastloop.ahead.pinned import through_pinned
from fastloop.ahead.process import by_process
from fastloop.ahead.stream import by_stream
from fastloop.ahead.thread import by_thread
from fastloop.collates.default import Default
from fastloop.gate import placing
from fastloop.job import Job
from fastloop.types import Epochs, Plan, Prepared, Tree


def delivering(job: Job, prepared: Prepared, device: torch.device) -> Callable[[Tree], Tree]:
    """A function from a host batch to a whole one on the device: pinned, placed, finished."""
    place, finish = job.placement.to(device), job.collate.finish
    if job.pinned_buffers:
        place = through_pinned(place, job.pinned_buffers, device)
    if isinstance(job.collate, Default):
        return place
    scale = prepared.dataset.uint8_scale
    return lambda batch: finish(place(batch), scale)


def opening(
    job: Job, prepared: Prepared, plan: Plan, device: torch.device
) -> Callable[[], AbstractContextManager[Epochs]]:
    """What opens the loader; with device_prefetch its epochs are of batches on the device.

    What is done ahead is all of `delivering`, so that a batch is finished on the stream that moved
    it; a transform on the device is the loop's.
    """
    open_ = partial(job.loader.open, prepared, plan)
    if not job.device_prefetch:
        return open_
    deliver = placing(delivering(job, prepared, device))
    arguments = open_, deliver, job.device_prefetch, device
    if job.device_prefetch_by == "process":
        return partial(by_process, *arguments, job.start_method())
    return partial(by_stream if job.device_prefetch_by == "stream" else by_thread, *arguments)
