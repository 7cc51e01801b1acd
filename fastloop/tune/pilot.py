"""The pilot of a tuning: measurements of the present configuration before the race.

Its batches, timed one by one, are the input of explain's model, and observed passes are the basis
of the forecasts of memory. The pilot also prepares the data, before the race begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from fastloop.core import stats
from fastloop.core.plan import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import JobFailed
from fastloop.explain.explained_job import FEWEST_BATCHES, ExplainedJob, count_batches
from fastloop.explain.model_input import measure_for_model, measure_hand_off
from fastloop.explain.part_costs import PartCosts
from fastloop.explain.predict import (
    Measured,
    predict_gathered_seconds,
    predict_seconds,
    predict_threaded_seconds,
)
from fastloop.explain.rung_passes import BatchTimes
from fastloop.explain.rungs import uses_dataloader
from fastloop.sweep.prepare_stage import prepare_job
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.tune.memory_forecast import MIB, PREFETCH, MemoryProfile
from fastloop.tune.peak import observe_peak_mib
from fastloop.tune.short_budget import longest_epoch_s

EPOCH_S = 2.0
"""Raced epochs that take longer than this are cut to about this length (setting `batches`)."""


@dataclass(frozen=True, kw_only=True)
class PilotLimits:
    """The time and the memory that a pilot may take."""

    seconds: float = math.inf
    """Time by which the pilot ends, apart from passes that a limit of memory needs."""
    left_s: float = math.inf
    """Time until the budget is spent."""
    epoch_s: float = EPOCH_S
    """About the length of a raced epoch."""
    memory_mib: float | None = None
    """The user's limit of memory; None: there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Measurements of the present configuration, and predictions of others from them."""

    present: Job
    prepared: PreparedData
    measured: Measured | None
    """None if the budget has no time to measure for the model."""
    memory: MemoryProfile | None
    """None if no pass could be observed."""
    decode_s: float
    """Seconds to read all samples once, as writing a store does."""
    epoch_s: float
    """Seconds of a raced epoch of the present configuration, without workers."""
    cut: int | None
    """Batches of an epoch in the race; None: whole epochs."""

    def predict(self, job: Job) -> float:
        """Seconds of a whole epoch of the job by the model; 1 if there is no model."""
        if self.measured is None:
            return 1.0
        if job.loader != self.present.loader and not uses_dataloader(job):
            if job.loader.store is not None:
                return predict_gathered_seconds(job, self.measured)
            # Without a store its threads read the dataset's samples, which is no gather of rows.
            num_threads = getattr(job.loader, "num_threads", None)
            return predict_threaded_seconds(
                job, self.measured, 1 if num_threads is None else num_threads
            )
        is_new_store = self.present.loader.store is None and job.loader.store is not None
        kept = self.measured.kept if is_new_store else 1.0
        return predict_seconds(job, self.measured, kept=kept)


def run_pilot(
    request: JobRequest,
    present: Job,
    workers: Sequence[int],
    begin_step: Callable[[str], None],
    limits: PilotLimits = PilotLimits(),
) -> Pilot:
    """The pilot of the request's job as the race runs it.

    workers: the numbers of workers in the space. Raises JobFailed if the job can't be run.
    """
    begun_ns = now_ns()
    begin_step("preparing the data")
    prepared = prepare_job(present, request.launcher)
    whole_batches = count_batches(present, prepared)
    whole = ExplainedJob(
        job=present,
        prepared=prepared,
        launcher=request.launcher,
        begin_step=begin_step,
        whole_batches=whole_batches,
    )
    pass_ns = now_ns()
    as_is = whole.without_workers(present.torch_threads).time_batches()
    steps = StepsInTime(
        begin_step=begin_step,
        end_s=limits.seconds,
        begun_ns=begun_ns,
        longest_s=seconds_between(pass_ns, now_ns()),
    )
    counts = {*workers, present.loading.num_workers} if uses_dataloader(present) else set()
    memory, measured = None, None
    observe = partial(_observe, workers=counts - {0}, limit_mib=limits.memory_mib or math.inf)
    # A limit of the user's holds for short budgets, too: it is observed without a limit of time.
    if limits.memory_mib is not None:
        memory = observe(whole.cut(as_is), whole_batches)
    whole = replace(whole, begin_step=steps.begin)
    with suppress(OutOfTimeError):
        memory = memory or observe(whole.cut(as_is), whole_batches)
        measured = _measure_for_model(whole, as_is, sorted(counts))
    batch_s = stats.mean(as_is.load_s) + stats.mean(as_is.step_s)
    left_s = limits.left_s - seconds_between(begun_ns, now_ns())
    epoch_s = min(limits.epoch_s, longest_epoch_s(left_s))
    batches = max(FEWEST_BATCHES, math.ceil(epoch_s / batch_s))
    return Pilot(
        present=present,
        prepared=prepared,
        measured=measured,
        memory=memory,
        decode_s=stats.mean(as_is.load_s) * whole_batches,
        epoch_s=batch_s * min(batches, whole_batches),
        cut=batches if batches < whole_batches and not present.batches else None,
    )


class OutOfTimeError(Exception):
    """The pilot has no time left."""


@dataclass(kw_only=True)
class StepsInTime:
    """Begins steps as long as there is time for a step as long as the longest one so far."""

    begin_step: Callable[[str], None]
    end_s: float
    """Seconds after `begun_ns` by which the last step must have ended."""
    begun_ns: int
    longest_s: float
    _step_ns: int | None = None

    def begin(self, step: str) -> None:
        """Begin a step. Raises OutOfTimeError if it would probably end too late."""
        clock_ns = now_ns()
        if self._step_ns is not None:
            self.longest_s = max(self.longest_s, seconds_between(self._step_ns, clock_ns))
        if seconds_between(self.begun_ns, clock_ns) + self.longest_s > self.end_s:
            raise OutOfTimeError(step)
        self._step_ns = clock_ns
        self.begin_step(step)


def _measure_for_model(whole: ExplainedJob, as_is: BatchTimes, workers: Sequence[int]) -> Measured:
    # One pass of each kind, unlike in explain: only the ranking of candidates depends on it, and
    # the race corrects it.
    is_single = as_is.torch_threads == 1
    single = as_is if is_single else whole.without_workers(1).time_batches()
    short = whole.cut(as_is)
    serial = short.without_workers(1).time_ladder(1, None)[0]
    hand_off = measure_hand_off(short, sorted({*workers}), num_rounds=1)
    return measure_for_model(short, (as_is, single), serial, hand_off, PartCosts())


def _observe(
    short: ExplainedJob, whole_batches: int, workers: Set[int], limit_mib: float
) -> MemoryProfile | None:
    """The memory of the present job without workers, with the fewest of `workers`, and with the
    most of them that seem to stay within the limit.

    None if memory can't be observed.
    """
    alone = short.without_workers(short.job.torch_threads)
    process_mib = _peak_mib(alone)
    if process_mib is None:
        return None
    prepared = short.prepared
    rows_mib = prepared.num_samples * prepared.sample_nbytes / MIB
    added_mib: dict[int, float] = {}
    # Two numbers, as memory is not proportional to workers: the first one also keeps pages that the
    # process has changed since the fork, and in a short epoch the last ones have little to do.
    for choose in (min, max):
        room = limit_mib - process_mib
        counts = [n for n in workers if _extrapolate(added_mib, n) <= room and n not in added_mib]
        if not counts:
            break
        count = choose(counts)
        several = alone.with_workers(count, short.job.loading.multiprocessing_context)
        if (peak_mib := _peak_mib(several)) is not None:
            added_mib[count] = max(0.0, peak_mib - process_mib)
    return MemoryProfile(
        process_mib=process_mib,
        added_mib={short.job.start_method(): added_mib} if added_mib else {},
        prefetch_factor=short.job.loading.prefetch_factor or PREFETCH,
        batch_mib=prepared.sample_nbytes * short.job.loading.batch_size / MIB,
        batches=short.job.batches or whole_batches,
        rows_mib=rows_mib,
        included_rows_mib=_count_rows_held(short.job, prepared) * rows_mib,
    )


def _extrapolate(added_mib: Mapping[int, float], workers: int) -> float:
    """The MiB that so many workers add, in proportion to the most observed ones; 0 if none was
    observed."""
    most = max(added_mib, default=1)
    return added_mib.get(most, 0.0) * workers / most


def _count_rows_held(job: Job, prepared: PreparedData) -> float:
    """Number of times that an observed pass has all rows in memory, as a share if it has read only
    some of them."""
    if job.loader.store is None:
        return 0.0
    # The mapped pages and their copy.
    if traits_of(LoaderTraits, job.loader).in_memory:
        return 2.0
    batches = job.batches or math.inf
    return min(1.0, batches * job.loading.batch_size / prepared.num_samples)


def _peak_mib(explained: ExplainedJob) -> float | None:
    """Peak of the PSS in an observed pass; None if the system does not tell it, or the pass
    failed."""
    job = explained.job
    explained.begin_step("observing memory")
    arguments = observe_peak_mib, job, explained.prepared
    try:
        return explained.launcher.call(*arguments, timeout_s=job.trial_timeout_s)
    except JobFailed:
        return None
