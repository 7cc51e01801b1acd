"""Run the shadow of a timed trial: the same calls in another process, with the data compared.

A timed window looks at no sample. Therefore one trial of each job, drawn at random, is run again in
the same way, with a comparison with the dataset instead of the clock. A loader can't know whether
it is in a trial or in its shadow. The shadow also calls the checks of outside_work.py, which detect
work that a loader does outside of the requested epochs.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import replace

import numpy as np

from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.result import BenchmarkName, Calls, Shadow, Shuffling
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs, Invalid
from fastloop.data.reference import reference_hashes
from fastloop.data.sample_order import check_order, places_in_store
from fastloop.data.shuffling import shuffling_of
from fastloop.processes.rank_group import all_gather, world_size
from fastloop.trial.job import Job
from fastloop.trial.job_check import check_epoch, without_randomness
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.outside_work import check_idle, check_unforeseen_epoch
from fastloop.trial.page_cache import set_cache_state
from fastloop.trial.reopenable_loader import ReopenableLoader
from fastloop.trial.training_limit import replay_batches
from fastloop.trial.window import drain

LEAST_UNFORESEEN = 100_000
"""Smallest of the random epoch numbers that no loader can foresee."""
NUM_UNFORESEEN = 1_000_000
"""The random epoch number is one of this many numbers from LEAST_UNFORESEEN on."""
SHADOW_TIME = 4
"""Time limit of a shadow, as a multiple of the limit of a trial: hashing takes longer than
delivering."""


def run_shadow(job: Job, prepared: PreparedData, number: int, calls: Calls) -> Shadow:
    """Repeat a timed trial, and compare the epochs of its windows with the dataset.

    calls: the calls of the timed trial. Raises Invalid for samples that are not the dataset's, for
    another order than the plan's, for work outside the windows, and for batches that may be unread
    only in the windows.
    """
    context = without_randomness(start_job(job, prepared, number))
    observer = _Observer(context)
    with context.open_loader() as loader:
        unread = calls.unread
        if calls.compares_data:
            unread = observer.check(loader.epochs, job.epochs + 1)
        context.first_batch(loader.epochs)
        num_epochs = [_check_windows(observer, loader, calls, name) for name in job.benchmark]
        # This is read before the last comparison, because no window has timed that epoch.
        found_unread = observer.found_unread
        if calls.compares_data:
            observer.check(loader.epochs, job.epochs + 2)
        unforeseen = all_gather(secrets.randbelow(NUM_UNFORESEEN), int)[0]
        check_unforeseen_epoch(loader.epochs, LEAST_UNFORESEEN + unforeseen)
    # A trial reads the bytes of its batches only if it found unread batches in the epoch before its
    # windows. So batches that are unread only in the windows were timed without reading them.
    if found_unread and not unread:
        raise Invalid("batches of its windows may be unread in a file, those before are not")
    return Shadow(number=number, epochs=sum(num_epochs), shuffling=observer.judge_order())


def _check_windows(
    observer: _Observer, loader: ReopenableLoader, calls: Calls, name: BenchmarkName
) -> int:
    """Repeat the timed trial's calls for a benchmark, and compare epochs of its windows.

    Returns the number of compared epochs.
    """
    context, job = observer.context, observer.context.job
    deliver = context.step_delivery()
    drain(loader.epochs, deliver, job.epochs, context.device)
    count = 0
    for repeats in calls.windows.get(name, [1]):
        set_cache_state(job.cache, context.prepared.files, loader)
        check_idle(context.prepared.sample_nbytes * job.loading.batch_size)
        drawn = _epochs_to_compare(job.epochs, repeats)
        # Every rank has to compare the same epochs, because a comparison gathers from all ranks.
        compared = all_gather(drawn, set[int])[0]
        for epoch in range(job.epochs * repeats):
            if epoch in compared:
                observer.check(loader.epochs, epoch)
            else:
                drain(loader.epochs, deliver, epoch, context.device)
        count += len(compared)
    if name in calls.replays:
        replay_batches(loader.epochs(job.epochs), deliver)
    return count


def _epochs_to_compare(epochs: int, repeats: int) -> set[int]:
    """Numbers of the epochs of a window to compare.

    They are all `epochs` epochs that the job asks for, and the same number of repeated epochs,
    drawn at random (none if repeats is 1).
    """
    # Comparing all repeats would take many times as long. The system's source of randomness draws
    # some of them. A loader can't seed it, and so can't foresee which ones are drawn.
    asked, repeated = range(epochs), range(epochs, epochs * repeats)
    return {*asked, *random.SystemRandom().sample(repeated, min(epochs, len(repeated)))}


class _Observer:
    """Compares epochs of a loader with the dataset, and judges the order of their samples."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.found_unread = False
        """True once a batch of an epoch may have been unread in a file."""
        self._places: dict[int, np.ndarray] = {}
        """Number of an epoch -> places of its samples in the dataset, int64, in the order of
        delivery; -1 for a sample that is not in the dataset."""
        self._reference = reference_hashes(context.prepared)

    def check(self, epochs: Epochs, epoch: int) -> bool:
        """Compare an epoch by `check_epoch`, and keep the places of its samples."""
        hashes: list[np.ndarray] = []
        unread = check_epoch(self.context, epochs, epoch, hashes.append)
        self.found_unread = self.found_unread or unread
        delivered = np.concatenate([*hashes, np.zeros((0, 16), np.uint8)])
        self._places[epoch] = places_in_store(delivered, self._reference)
        return unread

    def judge_order(self) -> Shuffling | None:
        """Quality of the epochs' shuffling; None if samples are unknown, as with random ones.

        Raises Invalid for another order than the plan's, unless the data has its own order.
        """
        job, prepared, plan = self.context.job, self.context.prepared, self.context.plan
        # All ranks return here if one of them has unknown samples: the others would wait for that
        # rank below.
        has_unknown = any((places < 0).any() for places in self._places.values())
        if any(all_gather(bool(has_unknown), bool)):
            return None
        # No order can be asked of a loader that brings its own data, nor of a stream.
        has_own_order = traits_of(LoaderTraits, job.loader).brings_data or isinstance(
            prepared.dataset, StreamingDataset
        )
        error = ""
        if not has_own_order:
            try:
                check_order(prepared, plan, self._places)
            except Invalid as reason:
                error = str(reason)
        # Ranks with an error gather too, because the others would wait for them.
        if errors := [answer for answer in all_gather(error, str) if answer]:
            raise Invalid(errors[0])
        size = job.loading.batch_size
        shuffling = shuffling_of(self._places, prepared.num_samples, size)
        return replace(shuffling, ranks_disjoint=True) if world_size() > 1 else shuffling
