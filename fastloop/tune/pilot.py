"""The pilot of a tuning: measurements of the present configuration before the race.

Its batches, timed one by one, are the input of explain's model, and observed passes are the basis
of the forecasts of memory. The pilot also prepares the data, before the race begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fastloop.core import stats
from fastloop.core.interleave import rounds
from fastloop.core.parts import Part
from fastloop.core.plan import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline, deadline_after
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import FailureKind, JobFailed, UsageError
from fastloop.explain.cause_names import WAITING
from fastloop.explain.explained_job import (
    FEWEST_BATCHES,
    LEAST_PASS_S,
    ExplainedJob,
    count_batches,
)
from fastloop.explain.predict import (
    HandOff,
    Measured,
    predict_gathered_seconds,
    predict_seconds,
    predict_threaded_seconds,
)
from fastloop.explain.prediction_input import PartCosts, measure_for_model
from fastloop.explain.rung_passes import BatchTimes
from fastloop.explain.rungs import uses_dataloader
from fastloop.processes.resources import MIB
from fastloop.sweep.prepare_stage import prepare_job
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.tune.peak_memory import MemoryProfile, observe_peak_mib
from fastloop.tune.short_budget import EPOCH_S, TRIAL_S, longest_epoch_s

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PilotLimits:
    """The time and the memory that a pilot may take."""

    seconds: float = math.inf
    """Seconds after which the pilot ends, except for passes that a limit of memory needs."""
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
    """The input of the model; None if the budget has no time to measure it."""
    memory: MemoryProfile | None
    """The memory of observed passes; None if no pass could be observed."""
    decode_s: float
    """Seconds to read all samples once, as writing a store does."""
    epoch_s: float
    """Seconds of a raced epoch of the present configuration, without workers."""
    cut: int | None
    """Batches of an epoch in the race; None: whole epochs."""
    start_s: float = TRIAL_S
    """Seconds that the process of a trial takes to start."""

    def predict(self, job: Job) -> float:
        """Seconds of a whole epoch of the job by the model; 1 if there is no model."""
        if self.measured is None:
            return 1.0
        if job.loader != self.present.loader and not uses_dataloader(job):
            if job.loader.store is not None:
                return predict_gathered_seconds(job, self.measured)
            # Without a store, the loader's threads read samples of the dataset: no rows are
            # gathered.
            num_threads = getattr(job.loader, "num_threads", None)
            return predict_threaded_seconds(
                job, self.measured, 1 if num_threads is None else num_threads
            )
        is_new_store = self.present.loader.store is None and job.loader.store is not None
        kept = self.measured.kept if is_new_store else 1.0
        return predict_seconds(job, self.measured, kept=kept)


@dataclass(frozen=True, kw_only=True)
class PilotStart:
    """The beginning of a pilot: the prepared job and the times of its batches, without workers."""

    whole: ExplainedJob
    as_is: BatchTimes
    pass_s: float
    """Seconds that this pass took."""

    @property
    def start_s(self) -> float:
        """Seconds of the pass beside its timed batches. They are measured because a busy machine
        makes them long, too."""
        return max(TRIAL_S, self.pass_s - sum(self.as_is.load_s) - sum(self.as_is.step_s))

    @property
    def waits(self) -> bool:
        """True if samples wait rather than compute, so that many of them can be read at once."""
        return self.as_is.load_cpu_share < WAITING


def look_at(
    request: JobRequest,
    present: Job,
    begin_step: Callable[[str], None] = lambda _: None,
    deadline: Deadline | None = None,
) -> PilotStart:
    """The first look at the request's job as the race runs it.

    Raises JobFailed if it can't be run, and UsageError if preparing its data, or this look, does
    not end by the deadline.
    """
    deadline = deadline or Deadline()
    begin_step("preparing the data")
    left_s = None if math.isinf(deadline.end_ns) else max(LEAST_PASS_S, deadline.rest_s)
    with _time_limit(deadline, "preparing the data takes longer; fastloop prepare does that first"):
        prepared = prepare_job(present, request.launcher, most_s=left_s)
    whole = ExplainedJob(
        job=present,
        prepared=prepared,
        launcher=request.launcher,
        begin_step=begin_step,
        whole_batches=count_batches(present, prepared),
    )
    pass_ns, alone = now_ns(), whole.without_workers(present.torch_threads)
    with _time_limit(deadline, "timing some of its batches takes longer"):
        as_is = alone.ending_by(deadline).time_batches()
    return PilotStart(whole=whole, as_is=as_is, pass_s=seconds_between(pass_ns, now_ns()))


@contextmanager
def _time_limit(deadline: Deadline, reason: str) -> Iterator[None]:
    """A context in which a time limit that the deadline has set raises UsageError."""
    try:
        yield
    except JobFailed as error:
        if error.failure.kind == FailureKind.TIMEOUT and deadline.is_over:
            raise UsageError(reason) from None
        raise


def run_pilot(
    look: PilotStart, workers: Sequence[int], limits: PilotLimits = PilotLimits()
) -> Pilot:
    """The pilot after a first look. workers: the numbers of workers in the space."""
    begun_ns = now_ns()
    whole, as_is, present = look.whole, look.as_is, look.whole.job
    whole_batches = whole.whole_batches
    passes = TimedPasses(deadline=deadline_after(limits.seconds, begun_ns), longest_s=look.pass_s)
    counts = {*workers, present.loading.num_workers} if uses_dataloader(present) else set()
    short = whole.cut(as_is)
    observe = partial(_observe, short, whole_batches, counts - {0}, limits.memory_mib or math.inf)
    # A limit of memory that the user has set holds for short budgets, too, so these passes have no
    # limit of time.
    memory = None
    if limits.memory_mib is not None:
        memory = observe(TimedPasses(deadline=Deadline(), longest_s=0.0))
    memory = memory or observe(passes)
    measured = _measure_for_model(whole, as_is, sorted(counts), passes)
    batch_s = stats.mean(as_is.load_s) + stats.mean(as_is.step_s)
    left_s = limits.left_s - seconds_between(begun_ns, now_ns())
    epoch_s = min(limits.epoch_s, longest_epoch_s(left_s, look.start_s))
    batches = max(FEWEST_BATCHES, math.ceil(epoch_s / batch_s))
    return Pilot(
        present=present,
        prepared=whole.prepared,
        measured=measured,
        memory=memory,
        decode_s=stats.mean(as_is.load_s) * whole_batches,
        epoch_s=batch_s * min(batches, whole_batches),
        start_s=look.start_s,
        cut=batches if batches < whole_batches and not present.batches else None,
    )


@dataclass(kw_only=True)
class TimedPasses:
    """Runs passes, and knows by the longest one so far whether there is time for another one."""

    deadline: Deadline
    longest_s: float

    def have_time(self) -> bool:
        """True if a pass as long as the longest one would end in time."""
        return self.deadline.has_room(self.longest_s)

    def run(self, run_pass: Callable[[], T]) -> T:
        """The result of the pass."""
        begun_ns = now_ns()
        result = run_pass()
        self.longest_s = max(self.longest_s, seconds_between(begun_ns, now_ns()))
        return result

    def run_all(self, wanted: Sequence[Callable[[], T]]) -> list[T] | None:
        """The results of all these passes; None if there is no time for one of them."""
        results = []
        for run_pass in wanted:
            if not self.have_time():
                return None
            results.append(self.run(run_pass))
        return results


def _measure_for_model(
    whole: ExplainedJob, as_is: BatchTimes, workers: Sequence[int], passes: TimedPasses
) -> Measured | None:
    """The model's input; None if there is no time for all of its passes."""
    # One pass of each kind, unlike in explain: only the ranking of candidates depends on it, and
    # the race corrects it.
    single = as_is
    if as_is.torch_threads != 1:
        if not passes.have_time():
            return None
        single = passes.run(whole.without_workers(1).time_batches)
    short, counts = whole.cut(as_is), [count for count in workers if count]
    alone = short.without_workers(1)
    ((_, order),) = rounds(dict.fromkeys(alone.rungs, 1))
    in_order = passes.run_all([partial(alone.time_rung, rung, 0) for rung in order])
    if in_order is None:
        return None
    times = dict(zip(order, in_order, strict=True))
    # The rungs were timed in random order, while the ladder needs the lowest first.
    serial = {rung: times[rung] for rung in alone.rungs}
    hand_off: dict[int, list[HandOff]] = {}
    if counts:
        # The hand-off is the difference from a pass with the same batches, ready in the loop.
        several = [short.with_workers(count) for count in counts]
        through = [partial(each.time_rung, Part.HAND_OFF, 0) for each in several]
        timed = passes.run_all([partial(short.time_rung, Part.COPY, 0), *through])
        if timed is None:
            return None
        hand_off = {
            count: [(each, timed[0])] for count, each in zip(counts, timed[1:], strict=True)
        }
    return measure_for_model(short, (as_is, single), serial, hand_off, PartCosts())


def _observe(
    short: ExplainedJob,
    whole_batches: int,
    workers: Set[int],
    limit_mib: float,
    passes: TimedPasses,
) -> MemoryProfile | None:
    """The memory of the present job without workers, with the fewest of `workers`, and with the
    most of them that seem to stay within the limit.

    None if memory can't be observed, or if there is no time for it.
    """
    alone = short.without_workers(short.job.torch_threads)
    if not passes.have_time():
        return None
    process_mib = passes.run(partial(_peak_mib, alone))
    if process_mib is None:
        return None
    prepared = short.prepared
    added_mib = _observe_workers(short, workers, limit_mib - process_mib, process_mib, passes)
    if added_mib is None:
        return None
    rows_mib = prepared.num_samples * prepared.sample_nbytes / MIB
    return MemoryProfile(
        process_mib=process_mib,
        added_mib={short.job.start_method(): added_mib} if added_mib else {},
        prefetch_factor=short.job.loading.batches_ahead,
        batch_mib=prepared.sample_nbytes * short.job.loading.batch_size / MIB,
        batches=short.job.batches or whole_batches,
        rows_mib=rows_mib,
        included_rows_mib=_count_rows_held(short.job, prepared) * rows_mib,
    )


def _observe_workers(
    short: ExplainedJob, workers: Set[int], room_mib: float, process_mib: float, passes: TimedPasses
) -> dict[int, float] | None:
    """The memory that workers add, by their number: the fewest, and the most that seem to fit.

    None if there is no time for these passes. room_mib: the memory that workers may add.
    process_mib: the memory of a pass without workers.
    """
    alone = short.without_workers(short.job.torch_threads)
    added_mib: dict[int, float] = {}
    # Two numbers of workers are observed, because memory is not proportional to the number: the
    # first worker also keeps the pages that the process has changed since the fork, and in a short
    # epoch the last workers have little to do.
    for choose in (min, max):
        fitting = [n for n in workers if _extrapolate(added_mib, n) <= room_mib]
        counts = [n for n in fitting if n not in added_mib]
        if not counts:
            break
        if not passes.have_time():
            return None
        count = choose(counts)
        several = alone.with_workers(count, short.job.loading.multiprocessing_context)
        if (peak_mib := passes.run(partial(_peak_mib, several))) is not None:
            added_mib[count] = max(0.0, peak_mib - process_mib)
    return added_mib


def _extrapolate(added_mib: Mapping[int, float], workers: int) -> float:
    """The MiB that this number of workers adds, in proportion to the most observed; 0 if none was
    observed."""
    most = max(added_mib, default=1)
    return added_mib.get(most, 0.0) * workers / most


def _count_rows_held(job: Job, prepared: PreparedData) -> float:
    """Number of copies of all rows that an observed pass has in memory; a fraction if it has read
    only some of the rows."""
    if job.loader.store is None:
        return 0.0
    # Such a loader copies the rows into memory, and their mapped pages stay in memory, too.
    if traits_of(LoaderTraits, job.loader).in_memory:
        return 2.0
    batches = job.batches or math.inf
    return min(1.0, batches * job.loading.batch_size / prepared.num_samples)


def _peak_mib(explained: ExplainedJob) -> float | None:
    """Peak of the PSS in an observed pass; None if the system does not tell it, or the pass
    failed."""
    job = explained.job
    explained.begin_step("observing memory")
    try:
        return explained.launcher.call(
            observe_peak_mib, job, explained.prepared, timeout_s=job.trial_timeout_s
        )
    except JobFailed:
        return None
