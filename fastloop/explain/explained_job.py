"""Run the passes of a job that is explained: each in its own process, in interleaved rounds.

A pass is one measurement, for example of the epochs of one rung. A rung is the job without some of
its parts. A round runs each pass once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fastloop.core import stats
from fastloop.core.index_batches import num_batches
from fastloop.core.interleave import rounds
from fastloop.core.launcher import Launcher
from fastloop.core.number_text import significant
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.time_limits import Deadline, deadline_after, within
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import UsageError, name_of
from fastloop.explain.batch_passes import BatchTimes, time_batches
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.record_epoch import Recording, record_epoch
from fastloop.explain.rung_passes import EpochTimes, Round, time_rung
from fastloop.explain.rungs import rungs_of
from fastloop.trial.job import Job

Key = TypeVar("Key")

WINDOW_S = 0.5
"""Epochs that take more than this number of seconds are cut to about this length."""
LONGEST_EPOCH_S = 5.0
"""Maximum seconds of an epoch that can't be cut; a job is refused if such an epoch takes longer."""
FEWEST_BATCHES = 4
"""Minimum number of batches in an epoch that is cut."""
LEAST_PASS_S = 5.0
"""Minimum time limit of a pass in seconds: a slow start of its process must not end the pass."""
FEWEST_ROUNDS = 3
"""Number of rounds that are run however long they take, unless fewer are asked for."""
MOST_SECONDS = 60.0
"""Seconds after which no round begins, once FEWEST_ROUNDS have run. A given `seconds` replaces this
value."""
MORE_UNTIL_S = 20.0
"""Seconds after which no round is added to the rounds that were asked for."""


def count_batches(job: Job, prepared: PreparedData) -> int:
    """Number of batches in an epoch of the job."""
    return num_batches(job.plan(job.seed), prepared.num_samples)


@dataclass(frozen=True, kw_only=True)
class ExplainedJob:
    """A job with its data, and the launcher that starts its passes."""

    job: Job
    prepared: PreparedData
    launcher: Launcher
    begin_step: Callable[[str], None]
    """A function that is called with the name of each step as it begins, to show progress."""
    expect_steps: Callable[[int], None] = lambda _: None
    """A function that is called with the number of steps that are left, once that number is
    known."""
    whole_batches: int
    """Number of batches in an epoch of the job; passes may run only its beginning."""

    @property
    def rungs(self) -> tuple[Part, ...]:
        """The rungs that are run, lowest first."""
        return rungs_of(self.job, self.prepared)

    def without_workers(self, torch_threads: int | None) -> ExplainedJob:
        """The job with all work in its loop: without workers or prefetching to the device.

        The workers of a loader that is not built on torch's DataLoader stay. torch_threads: number
        of torch's intra-op threads; None: torch's default.
        """
        loading = self.job.loading
        # Other loaders have threads or processes that no setting of the job removes.
        if uses_dataloader(self.job):
            loading = loading.without_workers()
        settings = {"device_prefetch": 0, "device_prefetch_by": None, "loading": loading}
        return replace(self, job=replace(self.job, **settings, torch_threads=torch_threads))

    def with_workers(self, workers: int, context: str | None = None) -> ExplainedJob:
        """The job with that number of workers, at least one.

        context: the start method of the workers; None: the job's own.
        """
        context = context or self.job.loading.multiprocessing_context
        settings = {"num_workers": workers, "multiprocessing_context": context}
        loading = replace(self.job.loading, **settings)
        return replace(self, job=replace(self.job, loading=loading))

    def ending_by(self, deadline: Deadline) -> ExplainedJob:
        """The job with a time limit by which a pass that begins now is stopped at the deadline.

        The limit is at least LEAST_PASS_S, but never above the job's own limit.
        """
        limit_s = min(self.job.trial_timeout_s, max(LEAST_PASS_S, deadline.remaining_s))
        return replace(self, job=replace(self.job, trial_timeout_s=limit_s))

    def cut(self, times: BatchTimes) -> ExplainedJob:
        """The job with epochs of about WINDOW_S, for batches that take these times.

        Raises UsageError if such epochs can't be cut and are too long.
        """
        batch_s = stats.mean(times.load_s) + stats.mean(times.step_s)
        batches = max(FEWEST_BATCHES, math.ceil(WINDOW_S / batch_s))
        if batches >= self.whole_batches:
            return self
        # A loader that shuffles by itself also chooses the samples of its first batches. They are
        # not known in advance, so the epochs of such a loader can't be cut.
        if traits_of(LoaderTraits, self.job.loader).shuffles_itself:
            epoch_s = batch_s * self.whole_batches
            if epoch_s > LONGEST_EPOCH_S:
                reason = (
                    f"shuffles the samples itself, in epochs of about {significant(epoch_s, 2)} s"
                )
                allowed = f"epochs up to {LONGEST_EPOCH_S:g} s, for example of fewer samples"
                loader = f"loader={name_of(self.job.loader)}"
                raise UsageError(f"{loader} {reason}; allowed: {allowed}")
            return self
        return replace(self, job=replace(self.job, batches=batches))

    def time_batches(self) -> BatchTimes:
        """The times of single batches, measured in a new process."""
        self.begin_step("timing single batches")
        return self.launcher.call(
            time_batches, self.job, self.prepared, timeout_s=self.job.trial_timeout_s
        )

    def record_epoch(self) -> Recording:
        """The recording of an epoch in which every process records its work."""
        self.begin_step("recording an epoch")
        return self.launcher.call(
            record_epoch, self.job, self.prepared, timeout_s=self.job.trial_timeout_s
        )

    def time_rung(self, rung: Part, number: int) -> EpochTimes:
        """The times of epochs of one rung, measured in a new process.

        number: number of the round, from 0.
        """
        self.begin_step(f"{rung}, round {number + 1}")
        return self.launcher.call(
            time_rung,
            self.job,
            self.prepared,
            rung,
            number,
            timeout_s=self.job.trial_timeout_s,
        )

    def time_ladder(
        self,
        num_rounds: int,
        seconds: float | None,
        needs_more: Callable[[list[Round]], bool] = lambda _: False,
    ) -> list[Round]:
        """The times of all rungs, round by round.

        num_rounds: number of rounds, if there is time. seconds: time after which no round begins,
        once FEWEST_ROUNDS have run; None: MOST_SECONDS. needs_more: returns True if the rounds so
        far do not suffice. Up to num_rounds more rounds then follow; no such round begins after
        MORE_UNTIL_S, or after `seconds` if that is less.
        """
        # The time counts from the first round on, so a job with slow passes gets no added rounds.
        deadline = deadline_after(min(seconds or MORE_UNTIL_S, MORE_UNTIL_S))
        timed = self._time_rounds(num_rounds, seconds)
        if deadline.is_over or not needs_more(timed):
            return timed
        more = within(rounds(dict.fromkeys(self.rungs, num_rounds)), deadline.remaining_s)
        return timed + [self._time_round(len(timed) + number, rungs) for number, rungs in more]

    def _time_rounds(self, num_rounds: int, seconds: float | None) -> list[Round]:
        """The times of all rungs in the rounds for which there is time."""
        counts = dict.fromkeys(self.rungs, num_rounds)
        return [self._time_round(*each) for each in _rounds_within(counts, seconds)]

    def _time_round(self, number: int, rungs: Sequence[Part]) -> Round:
        """The times of all rungs in one round. rungs: the same rungs, in the order to run."""
        times = {rung: self.time_rung(rung, number) for rung in rungs}
        # The rungs were timed in the order of the round, while the ladder needs the lowest first.
        return {rung: times[rung] for rung in self.rungs}


def time_side_by_side(
    jobs: dict[str, ExplainedJob], num_rounds: int, seconds: float | None
) -> list[dict[str, EpochTimes]]:
    """The times of whole jobs, with all of their parts, by name of the job, for each round.

    num_rounds, seconds: as for `ExplainedJob.time_ladder`.
    """
    return [
        {name: jobs[name].time_rung(jobs[name].rungs[-1], number) for name in names}
        for number, names in _rounds_within(dict.fromkeys(jobs, num_rounds), seconds)
    ]


def _rounds_within(
    counts: dict[Key, int], seconds: float | None
) -> Iterator[tuple[int, list[Key]]]:
    """The number and the keys of each round, in the order in which the keys run.

    counts: number of rounds of each key. seconds: time after which no round begins, once
    FEWEST_ROUNDS have run; None: MOST_SECONDS.
    """
    deadline = deadline_after(seconds or MOST_SECONDS)
    for number, keys in rounds(counts):
        if number >= FEWEST_ROUNDS and deadline.is_over:
            return
        yield number, keys
