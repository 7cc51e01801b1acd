"""Drop the candidates of tuning that need too much memory or disk, or too much time to start.

A candidate is the present job with a change, see candidates.py. The time to start is the time for
writing a store, or for starting workers.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from fastloop.core.loading_settings import WORKERS_FOR_WAITING, as_override
from fastloop.core.outputs_folder import nearest_existing
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.processes.resources import MIB
from fastloop.trial.job import Job
from fastloop.tune.candidates import Candidates
from fastloop.tune.expected_cost import WORKER_S
from fastloop.tune.peak_memory import forecast_trial_mib
from fastloop.tune.pilot import Pilot

DISK_KEPT = 0.1
"""Share of a disk's free space that a store must leave free."""
RANDOM_SAMPLES = "the samples are random, and a store repeats one draw of them"
"""The reason why a candidate with a new store is dropped if the dataset's samples are random."""
LARGEST_WRITING_SHARE = 0.25
"""Maximum share of the budget that writing one store may take."""
LARGEST_START_SHARE = 0.05
"""Maximum share of the budget that starting the workers of one epoch may take, chosen by hand. On a
busy machine, many workers that start anew in each epoch would otherwise take all of a short
budget."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The memory and the time that candidates may take."""

    memory_mib: float
    """The memory that a trial may take, in MiB."""
    budget_s: float | None
    """Seconds of the budget; None if the budget is not a time."""
    slowdown: float = 1.0
    """Factor by which other programs on the machine prolong the start of workers."""


def check_memory(pilot: Pilot, limit_mib: float | None) -> None:
    """Raise UsageError if the user's limit of memory can't be kept.

    A limit can't be kept if memory can't be observed, or if the present configuration exceeds it:
    that configuration must run, because all others are compared with it. limit_mib: None: no limit.
    """
    if limit_mib is None:
        return
    given = f"memory_limit_mib={limit_mib:g}"
    if pilot.memory is None:
        raise UsageError(f"{given}: memory can't be observed here; allowed: null")
    peak_mib = forecast_trial_mib(pilot.present, pilot.memory)
    if peak_mib > limit_mib:
        yours = f"trials of the present configuration may take {peak_mib:,.0f} MiB"
        raise UsageError(f"{given}: {yours}; allowed: from {math.ceil(peak_mib)}")


def drop_slow_starts(candidates: Candidates) -> Candidates:
    """Drop candidates with a changed start method and many workers, unless workers are forked.

    Many workers: a number in WORKERS_FOR_WAITING.
    """

    def find_reason(job: Job, change: Change) -> str:
        workers = job.loading.num_workers
        context = as_override("multiprocessing_context", job.loading.multiprocessing_context)
        # Workers that are not forked import torch again, so the start of many takes minutes.
        is_changed = context in change.overrides and job.start_method() != "fork"
        is_slow = workers in WORKERS_FOR_WAITING and is_changed
        return f"num_workers={workers} with {context}: slow to start" if is_slow else ""

    return candidates.drop(find_reason)


def drop_unaffordable(candidates: Candidates, pilot: Pilot, bounds: Bounds) -> Candidates:
    """Drop candidates that exceed the bounds, and candidates with a store that can't be written.

    pilot: the first measurements of the present configuration.
    """
    return candidates.drop(lambda job, _: _excess(job, pilot, bounds))


def _excess(job: Job, pilot: Pilot, bounds: Bounds) -> str:
    """The reason why the job is dropped; empty if it is kept.

    The reason is a bound that the job exceeds, or an obstacle to writing its store.
    """
    if pilot.memory is not None:
        peak_mib = forecast_trial_mib(job, pilot.memory)
        if peak_mib > bounds.memory_mib:
            limit = f"above the limit of {bounds.memory_mib:,.0f} MiB"
            return f"num_workers={job.loading.num_workers}: forecast peak of memory {limit}"
    workers = job.loading.num_workers
    start_s = workers * WORKER_S * bounds.slowdown
    if bounds.budget_s is not None and start_s > LARGEST_START_SHARE * bounds.budget_s:
        return f"num_workers={workers}: their start takes about {start_s:.0f} s of the budget"
    return _excess_of_store(job, pilot, bounds)


def _excess_of_store(job: Job, pilot: Pilot, bounds: Bounds) -> str:
    """The reason why the job's store can't be written; empty if there is none."""
    # The present job's store is written already.
    store = job.loader.store
    if store is None or store == pilot.present.loader.store:
        return ""
    # Writing a store of random samples is refused, so no trial that needs such a store may begin.
    if pilot.prepared.random:
        return RANDOM_SAMPLES
    # This is the size of the rows. The bytes that the store's format adds are not known.
    nbytes = pilot.prepared.num_samples * pilot.prepared.sample_nbytes
    free = shutil.disk_usage(nearest_existing(Path(store.root))).free
    if nbytes > (1 - DISK_KEPT) * free:
        return f"its store of {nbytes / MIB:,.0f} MiB: the disk has {free / MIB:,.0f} MiB left"
    if bounds.budget_s is not None and pilot.decode_s > LARGEST_WRITING_SHARE * bounds.budget_s:
        return f"writing its store takes about {pilot.decode_s:,.0f} s of the budget"
    return ""
