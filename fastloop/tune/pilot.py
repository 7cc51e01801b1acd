"""Run the pilot of a tuning: measurements of the present configuration before the race.

The pilot prepares the data, and times batches one by one. From these times, explain's model
predicts other configurations. The pilot also observes the memory of passes, from which
peak_memory.py forecasts the memory of other configurations. A pass is an epoch, or a part of one,
outside of trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from fastloop.core import stats
from fastloop.core.interleave import rounds
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline, TimedPasses, deadline_after
from fastloop.core.types import FailureKind, JobFailed, UsageError
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.causes import LEAST_COMPUTING_SHARE
from fastloop.explain.explained_job import (
    FEWEST_BATCHES,
    LEAST_PASS_S,
    ExplainedJob,
    count_batches,
)
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.predict import (
    HandOff,
    Measured,
    predict_gathered_seconds,
    predict_seconds,
    predict_threaded_seconds,
)
from fastloop.explain.prediction_input import PartCosts, SingleBatches, measure_for_model
from fastloop.sweep.prepare_job import forecast_preparation_s, prepare_job
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.tune.peak_memory import MemoryProfile, observe_memory
from fastloop.tune.race_time import EPOCH_S, TRIAL_S, longest_epoch_s

SURELY_LATE = 4.0
"""Reading all samples is refused at once if it is forecast to take more than this many times the
time left (about twice the budget); otherwise the deadline stops it. Chosen by hand: the forecast is
made from the first samples, which may be slower than others."""


class SlowReadingError(UsageError):
    """Reading all samples once takes longer than there is time for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"reading all samples once takes about {seconds:.0f} s")


@dataclass(frozen=True, kw_only=True)
class PilotLimits:
    """The time and the memory that a pilot may take."""

    seconds: float = math.inf
    """Seconds after which the pilot ends, except for passes that a limit of memory needs."""
    left_s: float = math.inf
    """Seconds until the budget is spent."""
    epoch_s: float = EPOCH_S
    """Approximate seconds to which the epochs of the race are cut, if they are longer."""
    memory_mib: float | None = None
    """The user's limit of memory; None if there is no limit."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Measurements of the present configuration, from which `predict` predicts other ones."""

    present: Job
    """The present job, as the race runs it."""
    prepared: PreparedData
    """The data of the present job."""
    measured: Measured | None
    """The input of the model; None if the budget has no time to measure it."""
    memory: MemoryProfile | None
    """The memory of observed passes; None if no pass could be observed."""
    decode_s: float
    """Seconds to read all samples once, as writing a store does."""
    epoch_s: float
    """Seconds of an epoch of the race, with the present configuration but without workers."""
    cut: int | None
    """Number of batches to which the race cuts each epoch; None: epochs stay as they are."""
    start_s: float = TRIAL_S
    """Seconds that the process of a trial takes to start."""

    def predict(self, job: Job) -> float | None:
        """Predict the seconds of a whole epoch of the job; None if the model was not measured."""
        if self.measured is None:
            return None
        if job.loader != self.present.loader and not uses_dataloader(job):
            if job.loader.store is not None:
                return predict_gathered_seconds(job, self.measured)
            # Without a store, the threads of such a loader read samples of the dataset, instead of
            # gathering rows.
            num_threads = getattr(job.loader, "num_threads", None)
            return predict_threaded_seconds(
                job, self.measured, 1 if num_threads is None else num_threads
            )
        is_new_store = self.present.loader.store is None and job.loader.store is not None
        kept = self.measured.kept if is_new_store else 1.0
        return predict_seconds(job, self.measured, kept=kept)


@dataclass(frozen=True, kw_only=True)
class FirstPass:
    """The first pass of a pilot: the batches of the present job, timed without workers."""

    whole_epochs: ExplainedJob
    """The present job, over whole epochs."""
    own_threads: BatchTimes
    """The times of the batches of the pass, with the job's own number of torch's threads."""
    pass_s: float
    """Seconds that the pass took, with the start of its process."""

    @property
    def start_s(self) -> float:
        """Seconds that the process of a pass takes to start: the time outside the timed batches.

        It is measured, because the start takes longer on a busy machine.
        """
        batches_s = sum(self.own_threads.load_s) + sum(self.own_threads.step_s)
        return max(TRIAL_S, self.pass_s - batches_s)

    @property
    def waits(self) -> bool:
        """True if samples wait rather than compute, so that many of them can be read at once."""
        return self.own_threads.load_cpu_share < LEAST_COMPUTING_SHARE


def time_first_pass(
    request: JobRequest,
    present: Job,
    begin_step: Callable[[str], None] = lambda _: None,
    deadline: Deadline | None = None,
) -> FirstPass:
    """Prepare the data of the present job, and time batches of it in a first pass.

    present: the request's job as the race runs it. Raises JobFailed if the job can't be run, and
    UsageError if preparing its data, or the pass, does not end by the deadline. If the first
    samples show that reading all samples takes far longer, SlowReadingError is raised at once.
    """
    deadline = deadline or Deadline()
    begin_step("preparing the data")
    left_s = None if math.isinf(deadline.end_ns) else max(LEAST_PASS_S, deadline.remaining_s)
    with _time_limit(deadline, "preparing the data takes longer; fastloop prepare does that first"):
        if left_s is not None:
            reading_s = forecast_preparation_s(present, request.launcher, left_s)
            if reading_s > SURELY_LATE * left_s:
                raise SlowReadingError(reading_s)
        prepared = prepare_job(present, request.launcher, most_s=left_s)
    whole_epochs = ExplainedJob(
        job=present,
        prepared=prepared,
        launcher=request.launcher,
        begin_step=begin_step,
        whole_batches=count_batches(present, prepared),
    )
    start_ns = now_ns()
    without_workers = whole_epochs.without_workers(present.torch_threads)
    with _time_limit(deadline, "timing some of its batches takes longer"):
        own_threads = without_workers.ending_by(deadline).time_batches()
    pass_s = seconds_between(start_ns, now_ns())
    return FirstPass(whole_epochs=whole_epochs, own_threads=own_threads, pass_s=pass_s)


@contextmanager
def _time_limit(deadline: Deadline, reason: str) -> Iterator[None]:
    """A context that raises UsageError with this reason if the deadline has stopped a child
    process, instead of the child's JobFailed."""
    try:
        yield
    except JobFailed as error:
        if error.failure.kind == FailureKind.TIMEOUT and deadline.is_over:
            raise UsageError(reason) from None
        raise


def run_pilot(
    first: FirstPass, workers: Sequence[int], limits: PilotLimits = PilotLimits()
) -> Pilot:
    """Run the pilot after its first pass: observe memory, and measure the input of the model.

    first: the first pass. workers: the numbers of workers that tuning tries. Raises UsageError if
    the epochs of the present job can't be cut and are too long.
    """
    start_ns = now_ns()
    whole_epochs, own_threads = first.whole_epochs, first.own_threads
    present, whole_batches = whole_epochs.job, whole_epochs.whole_batches
    passes = TimedPasses(deadline=deadline_after(limits.seconds, start_ns), longest_s=first.pass_s)
    counts = {*workers, present.loading.num_workers} if uses_dataloader(present) else set()
    observe = partial(
        observe_memory,
        whole_epochs.cut(own_threads),
        whole_batches,
        counts - {0},
        limits.memory_mib or math.inf,
    )
    # If the user has limited memory, it is observed even with a short budget, which has no time for
    # it: these passes have no limit of time.
    memory = None
    if limits.memory_mib is not None:
        memory = observe(TimedPasses(deadline=Deadline(), longest_s=0.0))
    memory = memory or observe(passes)
    measured = _measure_for_model(whole_epochs, own_threads, sorted(counts), passes)
    load_s = stats.mean(own_threads.load_s)
    batch_s = load_s + stats.mean(own_threads.step_s)
    left_s = limits.left_s - seconds_between(start_ns, now_ns())
    epoch_s = min(limits.epoch_s, longest_epoch_s(left_s, first.start_s))
    batches = max(FEWEST_BATCHES, math.ceil(epoch_s / batch_s))
    return Pilot(
        present=present,
        prepared=whole_epochs.prepared,
        measured=measured,
        memory=memory,
        decode_s=load_s * whole_batches,
        epoch_s=batch_s * min(batches, whole_batches),
        start_s=first.start_s,
        cut=batches if batches < whole_batches and not present.batches else None,
    )


def _measure_for_model(
    whole_epochs: ExplainedJob,
    own_threads: BatchTimes,
    workers: Sequence[int],
    passes: TimedPasses,
) -> Measured | None:
    """Measure the model's input; None if there is no time for all of its passes.

    own_threads: the times of the first pass. workers: the numbers of workers to measure.

    There is one pass of each kind, unlike in explain: only the ranking of candidates depends on it,
    and the race corrects it.
    """
    # The model also needs the times of batches that are made with one thread of torch, as workers
    # make them.
    one_thread = own_threads
    if own_threads.torch_threads != 1:
        if not passes.have_time():
            return None
        one_thread = passes.run(whole_epochs.without_workers(1).time_batches)
    cut_epochs = whole_epochs.cut(own_threads)
    without_workers = cut_epochs.without_workers(1)
    ((_, order),) = rounds(dict.fromkeys(without_workers.rungs, 1))
    in_order = passes.run_all([partial(without_workers.time_rung, rung, 0) for rung in order])
    if in_order is None:
        return None
    times = dict(zip(order, in_order, strict=True))
    # A rung is the job with some parts of its loading left out. The rungs were timed in random
    # order; the ladder lists them from the lowest, the one with the fewest parts.
    ladder = {rung: times[rung] for rung in without_workers.rungs}
    hand_off = _measure_hand_off(cut_epochs, [count for count in workers if count], passes)
    if hand_off is None:
        return None
    batches = SingleBatches(own_threads=own_threads, one_thread=one_thread)
    return measure_for_model(cut_epochs, batches, ladder, hand_off, PartCosts())


def _measure_hand_off(
    cut_epochs: ExplainedJob, workers: Sequence[int], passes: TimedPasses
) -> dict[int, list[HandOff]] | None:
    """Time a pass with each number of workers, and one pass to compare them with.

    Returns the hand-offs by number of workers; None if there is no time for all passes.
    """
    if not workers:
        return {}
    # The hand-off is the way of a batch from a worker to the loop. Its time is the difference
    # between a pass with workers and a pass with the same batches, which are ready in the loop.
    with_workers = [cut_epochs.with_workers(count) for count in workers]
    timed = passes.run_all(
        [
            partial(cut_epochs.time_rung, Part.COPY, 0),
            *(partial(each.time_rung, Part.HAND_OFF, 0) for each in with_workers),
        ]
    )
    if timed is None:
        return None
    in_loop, *from_workers = timed
    return {
        count: [HandOff(each, in_loop)] for count, each in zip(workers, from_workers, strict=True)
    }
