"""Check an epoch of a job: compare the dataset with the samples that the loader delivers."""

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
    """Raise Invalid if the samples of an epoch, as they arrive on the device, are not the dataset's
    or crops of its images.

    Apart from crops, the job's transform is left out. Returns True if a batch may have bytes in a
    mapped file that nothing has read yet.

    epochs: the epochs of the timed loader. epoch: number of the epoch. observe: called with the
    (batch_size, 16) uint8 hashes of each batch.
    """
    # Random and transformed samples can't be compared with the dataset. So a second loader, without
    # the randomness and the transform, is compared in place of the timed loader.
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

    The second loader reads the samples without the transform of the workers and, if same_data is
    true, without randomness. It is needed if workers transform samples, or if samples are random
    and same_data is true.
    """
    compares_random = context.prepared.random and context.job.same_data
    return context.plan.transform is not None or compares_random


def without_randomness(context: JobContext) -> JobContext:
    """The context of the job without the transform of its workers.

    If same_data is true, the index of a random sample seeds the random generators before the sample
    is read. Raises Unsupported for a store of random samples.
    """
    prepared = make_repeatable(context.prepared) if context.job.same_data else context.prepared
    return replace(context, plan=replace(context.plan, transform=None), prepared=prepared)


def compares_crops(job: Job) -> bool:
    """True if samples are compared as crops of images, in the order of the epoch.

    Other samples are compared bit by bit, in any order.
    """
    follows_order = traits_of(LoaderTraits, job.loader).has_even_shares
    return isinstance(job.dataset, CroppedDataset) and job.same_data and follows_order
