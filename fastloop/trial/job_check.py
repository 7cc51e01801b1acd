"""Check an epoch of a job: compare the samples that the step would receive with the dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs
from fastloop.data.cropped_dataset import CroppedDataset
from fastloop.data.random_samples import make_repeatable
from fastloop.data.same_crops import check_crops
from fastloop.data.same_data import check_data, check_placed
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.unread_batches import UnreadBatches


def check_epoch(
    context: JobContext,
    epochs: Epochs,
    epoch: int,
    observe: Callable[[np.ndarray], object] | None = None,
) -> bool:
    """Raise Invalid if one epoch, as the step would receive it, is not the dataset's.

    Returns True if bytes of some batch may be unread in a file.

    observe: called with the (batch, 16) uint8 hashes of each batch.
    """
    # Random and transformed samples can't be compared with the dataset: a second loader without
    # the randomness and the transform is compared instead of the timed loader.
    if needs_second_loader(context):
        plain = without_randomness(context)
        with plain.open_loader() as loader:
            return check_epoch(plain, loader.epochs, epoch, observe)
    unread = UnreadBatches(epochs(epoch), context.device)
    deliver = check_placed(context.loop_delivery())
    batches = map(deliver, unread)
    if compares_crops(context.job):
        check_crops(context.prepared, context.plan, batches, epoch, observe)
    else:
        check_data(
            context.prepared,
            context.plan,
            batches,
            epoch,
            same_data=context.job.same_data,
            observe=observe,
        )
    return unread.found


def needs_second_loader(context: JobContext) -> bool:
    """True if a second loader has to be compared in place of the timed one.

    This loader reads the samples without the transform of the workers and, unless same_data=false,
    without randomness. It is needed if workers transform samples, or if random samples are
    compared (same_data=true).
    """
    compares_random = context.prepared.random and context.job.same_data
    return context.plan.transform is not None or compares_random


def without_randomness(context: JobContext) -> JobContext:
    """The context of the job without the transform of its workers.

    Unless same_data=false, random samples are read with generators that are seeded by the sample's
    index. Raises Unsupported for a store of random samples.
    """
    prepared = make_repeatable(context.prepared) if context.job.same_data else context.prepared
    return replace(context, plan=replace(context.plan, transform=None), prepared=prepared)


def compares_crops(job: Job) -> bool:
    """True if samples are compared as crops, place by place, instead of bit by bit."""
    follows_order = traits_of(LoaderTraits, job.loader).has_even_shares
    return isinstance(job.dataset, CroppedDataset) and job.same_data and follows_order
