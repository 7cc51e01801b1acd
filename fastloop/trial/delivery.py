"""The stages of a job between loader and step: prefetching, placement on the device, transform.

With `device_prefetch` a batch is loaded and delivered ahead of the loop; without, the loop does it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import torch

from fastloop.core.epochs import OrderPrefix, uncut_order
from fastloop.core.plan import Plan, PreparedData
from fastloop.core.protocols import LengthAwareOrder
from fastloop.core.traits import CollateTraits, TransformTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.data.cropped_dataset import number_samples
from fastloop.data.preparation import sample_lengths
from fastloop.data.same_data import check_placed
from fastloop.trial.job import Job
from fastloop.trial.prefetch.pinned import place_through_pinned
from fastloop.trial.prefetch.process import prefetch_by_process
from fastloop.trial.prefetch.stream import prefetch_by_stream
from fastloop.trial.prefetch.thread import prefetch_by_thread
from fastloop.trial.window import Consumer


def full_delivery(job: Job, prepared: PreparedData, device: torch.device) -> Callable[[Tree], Tree]:
    """A function from a host batch to a complete batch on the device: pin, place, finish
    collate."""
    place, finish = job.placement.to(device), job.collate.finish
    if job.pinned_buffers:
        place = place_through_pinned(place, job.pinned_buffers, device)
    # nothing is left to finish; a wrapper would cost a call for each batch in the window
    if traits_of(CollateTraits, job.collate).is_default:
        return place
    scale = prepared.dataset.uint8_scale
    return lambda batch: finish(place(batch), scale)


def loader_opener(
    job: Job, prepared: PreparedData, plan: Plan, device: torch.device
) -> Callable[[], AbstractContextManager[Epochs]]:
    """A function that opens the loader; with device_prefetch its batches come on the device."""
    # Prefetching covers all of full_delivery, so that a batch is finished on the CUDA stream that
    # has copied it. A transform on the device is the step's work, and stays in the loop.
    open_ = partial(job.loader.open, *number_samples(prepared, plan))
    if not job.device_prefetch:
        return open_
    deliver = check_placed(full_delivery(job, prepared, device))
    ahead = job.device_prefetch
    if job.device_prefetch_by == "process":
        return partial(prefetch_by_process, open_, deliver, ahead, device, job.start_method())
    prefetch = prefetch_by_stream if job.device_prefetch_by == "stream" else prefetch_by_thread
    return partial(prefetch, open_, deliver, ahead, device)


def loop_delivery(job: Job, prepared: PreparedData, device: torch.device) -> Consumer:
    """The part of `full_delivery` left to the loop: all of it, or none with device_prefetch."""
    return (lambda batch: batch) if job.device_prefetch else full_delivery(job, prepared, device)


def step_delivery(job: Job, prepared: PreparedData, device: torch.device) -> Consumer:
    """A function from a batch of the open loader to the step's input, which is transformed."""
    deliver, transform = loop_delivery(job, prepared, device), job.transform.transform_batch
    is_identity = traits_of(TransformTraits, job.transform).is_identity
    if is_identity or job.transform.where == "worker":
        return deliver
    return lambda batch: transform(deliver(batch))


def with_sample_lengths(plan: Plan, prepared: PreparedData) -> Plan:
    """The plan, with the sample lengths passed to an order that groups samples by length."""
    uncut = uncut_order(plan.order)
    if not isinstance(uncut, LengthAwareOrder):
        return plan
    order = uncut.with_lengths(sample_lengths(prepared))
    if isinstance(plan.order, OrderPrefix):
        order = replace(plan.order, order=order)
    return replace(plan, order=order)
