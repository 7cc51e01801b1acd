"""Run the jobs of a sweep in rounds: trial k of every job runs in round k.

The data of all jobs is prepared before the first round. After the last round each job has an
instrumented pass: a further epoch in which its waits and its CPU time are measured.

Rounds are interleaved, so that machine noise affects all jobs equally. Every result is written as
soon as it exists. A job that fails becomes a row with its reason, and the other jobs continue.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from fastloop.core.auto_trials import AUTO_SECONDS, LOOKS
from fastloop.core.interleave import rounds
from fastloop.core.limit import Limit
from fastloop.core.machine_load import load_between, read_counters
from fastloop.core.number_text import show_time
from fastloop.core.passwords import without_passwords
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Calls, Result, Trial
from fastloop.core.spans import now_ns, seconds_between, wall_ms
from fastloop.core.time_limits import within
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.data.prepare_dataset import find_damage
from fastloop.reporting.comparable import has_ranking, is_sweep_decided
from fastloop.sweep.caveats import find_caveats, option_caveats
from fastloop.sweep.explain_stage import (
    ExplainJob,
    explain_all,
    explanation_caveats,
    num_explain_steps,
)
from fastloop.sweep.job_state import JobState
from fastloop.sweep.merge_ranks import merge_passes, merge_shadows, merge_trials
from fastloop.sweep.prepare_stage import prepare_all
from fastloop.sweep.progress import Progress, round_line
from fastloop.sweep.settings import SweepSettings
from fastloop.sweep.sweep_job import SweepJob
from fastloop.sweep.time_spent import ROUNDS, StageClock
from fastloop.sweep.tracking import SweepTracker
from fastloop.trial.earlier_trials import find_earlier, limits_of
from fastloop.trial.job import Job
from fastloop.trial.limits import missing_limits
from fastloop.trial.profiling import profile_paths
from fastloop.trial.shadow import SHADOW_TIME
from fastloop.trial.tasks import instrumentation_task, profiling_task, shadow_task, trial_task
from fastloop.trial.timed_trial import run_trial

RunRound = Callable[[Sequence[JobState], int | None], list[str]]
"""(jobs, number) -> the names of the jobs that continue. Prepares the data of each job that runs
for the first time, and runs trial `number` of each job that lacks it. If the number is None, only
the data is prepared."""
Schedule = Callable[[Sequence[JobState], RunRound], Iterable[JobState]]
"""(jobs, run_round) -> the jobs that get instrumented passes. Decides which jobs run in which
round. Tuning has such a schedule, and so has the process of a version that is compared."""

MAX_ONE_PROCESS_TRIALS = 3
"""Maximum number of extra trials in one process, which show how a job of several ranks scales. They
run only if the sweep does not contain the same job in one process."""


def run_sweep(
    entries: Sequence[SweepJob],
    settings: SweepSettings,
    tracking: SweepTracker,
    progress: Progress,
    *,
    explain_job: ExplainJob | None = None,
    schedule: Schedule | None = None,
) -> list[Result]:
    """Run all jobs, and return their results in the same order.

    explain_job: the function that explains a job after the last round, with explain=true; None: no
    job can be explained. schedule: decides which jobs run in which round; None: trial k of every
    job runs in round k. A job that a schedule never runs leaves no files.
    """
    states = [JobState(entry, tracking) for entry in entries]
    session_ms = wall_ms()
    clock = StageClock()
    try:
        finishing: Iterable[JobState] = states
        # A schedule prepares a job when it first runs it, as it may run few of many jobs.
        if schedule is None:
            prepare_all(states, settings, progress.begin_step)
            clock.end("preparing the data")
            _run_rounds(states, settings, session_ms, progress)
        else:
            finishing = schedule(states, _round_runner(settings, session_ms, progress.begin_step))
        clock.end(ROUNDS)
        for state in finishing:
            run_passes(state, states, settings.profile, progress.begin_step)
        if settings.explain:
            explain_all(states, explain_job, progress)
        clock.end("instrumented passes")
        _finish_jobs(states)
        # Results are shown before they are logged, so that a slow server does not delay the answer.
        progress.show_results([state.result for state in states], clock.stages())
        for state in states:
            state.track()
    except BaseException as error:
        # KeyboardInterrupt too: the files must say that the sweep has ended.
        status = "KILLED" if isinstance(error, KeyboardInterrupt | SystemExit) else "FAILED"
        name = "SystemExit" if isinstance(error, SystemExit) else type(error).__name__
        for state in states if schedule is None else [each for each in states if each.has_begun]:
            # The error that ends the sweep may be a full disk.
            with contextlib.suppress(OSError):
                state.abort(status, f"{name}: {error}")
        raise
    return [state.result for state in states]


def _finish_jobs(states: Sequence[JobState]) -> None:
    """Record the caveats of each job that has begun and not failed, and end it as FINISHED."""
    # This comes after all passes, as some caveats depend on the results of other jobs.
    for state in states:
        if state.is_running and state.prepared is not None:
            job, result = state.entry.job, state.result
            caveats = [
                *find_caveats(result, [other.result for other in states]),
                *option_caveats(job, result.sample_nbytes, result.num_samples),
                *missing_limits(job),
                *explanation_caveats(state),
            ]
            state.update(caveats=caveats)
            state.finish()


def _round_runner(
    settings: SweepSettings, session_ms: int, begin_step: Callable[[str], None]
) -> RunRound:
    """The function `run_round` that a schedule calls to run a round."""
    # Data is kept from round to round: jobs that read the same data share it, and a schedule may
    # run a round in several calls.
    prepared: dict[str, PreparedData | Failure] = {}
    limits_by_round: dict[int, dict[str, Limit]] = {}

    def run_round(states: Sequence[JobState], number: int | None) -> list[str]:
        new = [state for state in states if state.prepared is None and not state.has_begun]
        prepare_all(new, settings, begin_step, prepared)
        if number is None:
            return [state.result.name for state in states if state.is_running]
        limits = limits_by_round.setdefault(number, {})
        return _run_round(states, number, limits, session_ms, begin_step)

    return run_round


def num_progress_steps(entries: Sequence[SweepJob], settings: SweepSettings) -> int:
    """Approximate number of times that run_sweep begins a step if nothing fails."""
    earlier = [entry.earlier for entry in entries]
    return len(entries) + _num_steps_left(entries, earlier, settings)


def _num_steps_left(
    entries: Sequence[SweepJob], done: Sequence[Result | None], settings: SweepSettings
) -> int:
    """Approximate number of steps that are still to begin after the data is prepared.

    done: the result of each job so far; None: the job has no result yet.
    """
    in_one_process = [entry.job for entry in entries if entry.launcher.world_size == 1]
    steps = 0
    for entry, result in zip(entries, done, strict=True):
        # A job of several ranks also runs in one process, which shows how it scales, unless the
        # sweep has that job already.
        job = entry.job
        num_done = len(result.trials) if result else 0
        needs_extra = entry.launcher.world_size > 1 and job not in in_one_process
        extra = num_one_process_trials(job) if needs_extra else 0
        passes = (1 + settings.profile) * len(job.benchmark)
        shadows = 0 if result and result.shadow else 1
        steps += max(0, job.most_trials + shadows + passes + extra - num_done)
        if settings.explain and not (result and result.explanation):
            steps += num_explain_steps(job, settings.tries)
    return steps


def _run_rounds(
    states: Sequence[JobState], settings: SweepSettings, session_ms: int, progress: Progress
) -> None:
    """Run the trials of all jobs in rounds, and report the progress after each round."""
    start_ns = now_ns()
    trials_done, rounds_done = 0, 0
    plan = _plan_rounds(states, settings)
    all_rounds = rounds(plan.num_trials, interleave=settings.interleave)
    if plan.is_auto:
        all_rounds = _until_decided(all_rounds, states)
    for number, taking_part in within(all_rounds, plan.limit_s, plan.fewest_rounds):
        names = _run_round(taking_part, number, {}, session_ms, progress.begin_step)
        # An earlier session has run this round, or its jobs have failed.
        if not names:
            continue
        trials_done += len(names)
        rounds_done += 1
        if number == 0 and len(states) == 1 and states[0].entry.job.most_trials > 1:
            progress.tell(_first_figures(states[0].result))
        running = [state for state in states if state.is_running]
        done = [state.result for state in running]
        steps_left = _num_steps_left([state.entry for state in running], done, settings)
        # Without interleaving, each round is a trial of one job, and no time limit is allowed.
        if settings.interleave:
            elapsed_s = seconds_between(start_ns, now_ns())
            steps_left -= len(names) * plan.count_cut_rounds(number, rounds_done, elapsed_s)
            title = plan.title_of(number)
        else:
            title = f"trial {number + 1} of {taking_part[0].entry.job.most_trials} of {names[0]}"
        progress.end_round(round_line(title, start_ns, trials_done, steps_left))


@dataclass(frozen=True, kw_only=True)
class _RoundPlan:
    """The rounds that a sweep may run."""

    num_trials: Mapping[JobState, int]
    """Job -> the largest number of its trials."""
    is_auto: bool
    """True with trials=auto: no round begins once the ranking is decided."""
    limit_s: float | None
    """Seconds after which no round begins; None: there is no such limit."""
    fewest_rounds: int
    """Number of rounds that begin even after `limit_s`, but not after OVERTIME times that time,
    see core/time_limits.py."""

    @property
    def most_rounds(self) -> int:
        """The largest number of rounds."""
        return max(self.num_trials.values())

    def count_cut_rounds(self, number: int, rounds_done: int, elapsed_s: float) -> int:
        """Number of the rounds after round `number` that the time limit will probably cut.

        rounds_done: number of rounds that this command has run, in `elapsed_s` seconds.
        """
        if self.limit_s is None:
            return 0
        rounds_left = self.most_rounds - number - 1
        cut = rounds_cut(rounds_left, elapsed_s / rounds_done, self.limit_s - elapsed_s)
        return min(cut, max(0, rounds_left - (self.fewest_rounds - number - 1)))

    def title_of(self, number: int) -> str:
        """The name of round `number` in a line about the progress."""
        most = "at most " if self.is_auto else ""
        return f"round {number + 1} of {most}{self.most_rounds}"


def _plan_rounds(states: Sequence[JobState], settings: SweepSettings) -> _RoundPlan:
    """The plan of the rounds for the jobs that can run."""
    running = [state for state in states if state.is_running]
    is_auto = any(state.entry.job.is_auto for state in running)
    # Fewer rounds than the first test of trials=auto needs would be measured for nothing.
    is_ranked = is_auto and has_ranking([state.result for state in running])
    return _RoundPlan(
        num_trials={state: state.entry.job.most_trials for state in running},
        is_auto=is_auto,
        limit_s=AUTO_SECONDS if is_auto and settings.seconds is None else settings.seconds,
        fewest_rounds=LOOKS[0] if is_ranked else 1,
    )


def rounds_cut(rounds_left: int, round_s: float, left_s: float) -> int:
    """The number of the remaining rounds that the time limit cuts.

    Each round takes `round_s` seconds, and no round begins after `left_s` seconds.
    """
    return max(0, rounds_left - max(0, math.ceil(left_s / round_s)))


def _first_figures(result: Result) -> str:
    """A line with the time of each benchmark in the latest trial."""
    # The line is printed only for a sweep of one job, because its table comes after all trials.
    trial = result.trials[-1]
    figures = [f"{name} {show_time(each.seconds)}" for name, each in trial.benchmarks.items()]
    return f"{result.name}, from one trial: {', '.join(figures)}"


def _until_decided(
    all_rounds: Iterable[tuple[int, list[JobState]]], states: Sequence[JobState]
) -> Iterator[tuple[int, list[JobState]]]:
    """The rounds that trials=auto needs: they end once the ranking of all jobs is decided."""
    for each in all_rounds:
        if is_sweep_decided([state.result for state in states if state.is_running]):
            return
        yield each


def _run_round(
    states: Sequence[JobState],
    number: int,
    limits: dict[str, Limit],
    session_ms: int,
    begin_step: Callable[[str], None],
) -> list[str]:
    """Run trial `number` of the jobs that lack it. Returns the names of the jobs that continue.

    limits: the limits that were measured in this round; further ones are added.
    """
    running = [state for state in states if state.is_running and number not in state.trial_numbers]
    names = [state.result.name for state in running]
    for state in running:
        entry, prepared = state.entry, state.prepared
        assert prepared is not None
        title = f"trial {number + 1} of {state.result.name}"
        begin_step(title)
        # Later trials reuse the values that the first one has found, such as the number of repeats.
        # Jobs of a round that do the same work share one measured limit.
        earlier = find_earlier(state.result.trials, limits)
        task = trial_task(entry.index, entry.job, prepared, number, earlier)
        task = replace(task, title=title)
        before = read_counters()
        try:
            answers = entry.launcher.call_ranks(task, timeout_s=entry.job.trial_timeout_s)
        except JobFailed as error:
            fail_job(state, error.failure)
        else:
            merged = merge_trials([answer.value for answer in answers])
            left = [command for answer in answers for command in answer.left_running]
            load = load_between(before, read_counters())
            trial = replace(merged, session_ms=session_ms, left_running=left, load=load)
            limits |= limits_of(trial)
            trials = [*state.result.trials, trial]
            # This writes result.json, before the next trial begins.
            state.update(trials=trials, rounds=[*state.result.rounds, names])
            if number == state.shadow_number:
                run_shadow(state, merged, begin_step)
    return [state.result.name for state in running if state.is_running]


def run_shadow(state: JobState, trial: Trial, begin_step: Callable[[str], None]) -> None:
    """Run the shadow of a trial: the same calls once more, compared with the dataset.

    The job fails if it delivers other data than the dataset's.
    """
    entry, job = state.entry, state.entry.job
    assert state.prepared is not None
    title = f"comparing the data of {state.result.name}"
    begin_step(title)
    task = shadow_task(entry.index, job, state.prepared, trial.number, trial.calls or Calls())
    task = replace(task, title=title)
    try:
        answers = entry.launcher.call_ranks(task, timeout_s=SHADOW_TIME * job.trial_timeout_s)
    except JobFailed as error:
        fail_job(state, error.failure)
    else:
        state.update(shadow=merge_shadows([answer.value for answer in answers]))


def run_passes(
    state: JobState, states: Sequence[JobState], profile: bool, begin_step: Callable[[str], None]
) -> None:
    """Run the passes that follow a job's trials.

    A job of several ranks also gets the rates of one process, which show how it scales.
    """
    # There is no shadow yet if an earlier session has run the drawn trial, because a resumed job
    # keeps no shadow, or if no trial was drawn, as in tuning.
    if state.is_running and state.result.shadow is None:
        run_shadow(state, state.result.trials[-1], begin_step)
    if state.is_running and state.entry.launcher.world_size > 1:
        _run_one_process(state, states, begin_step)
    if state.is_running:
        _run_instrumentation(state, begin_step)
    if state.is_running and profile:
        _run_profiling(state, begin_step)


def fail_job(state: JobState, failure: Failure) -> None:
    """End the job as failed; with several ranks, print the traceback of the rank that failed."""
    if failure.details and state.entry.launcher.world_size > 1 and not failure.kind.is_verdict:
        tqdm.write(without_passwords(failure.details).rstrip(), file=sys.stderr)
    # If a loader delivers wrong samples, the store that it reads may be damaged: the message then
    # says so.
    damage = ""
    if failure.kind == FailureKind.INVALID and state.prepared is not None:
        damage = find_damage(state.prepared)
    state.fail(replace(failure, message="; ".join(filter(None, [failure.message, damage]))))


def _run_one_process(
    state: JobState, states: Sequence[JobState], begin_step: Callable[[str], None]
) -> None:
    """Record the rates in samples/s of the same job in one process.

    They come from that job in this sweep, or from extra trials.
    """
    entry, job = state.entry, state.entry.job
    in_sweep = [
        other.result.trials
        for other in states
        if other.entry.job == job and other.entry.launcher.world_size == 1 and other.is_running
    ]
    trials: list[Trial] = in_sweep[0] if in_sweep else []
    is_known = bool(in_sweep or state.result.one_process)
    try:
        for number in range(0 if is_known else num_one_process_trials(job)):
            begin_step(f"in one process, trial {number + 1} of {state.result.name}")
            trial = entry.launcher.call(
                run_trial, job, state.prepared, number, now_ns(), timeout_s=job.trial_timeout_s
            )
            trials = [*trials, trial]
    # The job does not fail, because its trials with several ranks stay valid.
    except JobFailed as error:
        tqdm.write(f"{state.result.name}: {error} (in one process)", file=sys.stderr)
    rates = {
        name: [trial.benchmarks[name].samples_per_s for trial in trials] for name in job.benchmark
    }
    state.update(one_process=rates if trials else state.result.one_process)


def num_one_process_trials(job: Job) -> int:
    """Number of extra trials in one process that a job of several ranks is compared with."""
    return min(job.most_trials, MAX_ONE_PROCESS_TRIALS)


def _run_instrumentation(state: JobState, begin_step: Callable[[str], None]) -> None:
    """Run the instrumented pass of each benchmark that has none yet; if one fails, the job
    fails."""
    entry, job = state.entry, state.entry.job
    assert state.prepared is not None
    for name in job.benchmark:
        if name in state.result.attribution:
            continue
        title = f"instrumented pass of {state.result.name}, {name}"
        begin_step(title)
        task = instrumentation_task(entry.index, job, state.prepared, name)
        task = replace(task, title=title)
        limit_s = job.trial_timeout_s
        try:
            answers = entry.launcher.call_ranks(task, timeout_s=limit_s, observed=True)
        except JobFailed as error:
            fail_job(state, error.failure)
            return
        state.update(attribution=state.result.attribution | {name: merge_passes(answers)})


def _run_profiling(state: JobState, begin_step: Callable[[str], None]) -> None:
    """Profile each benchmark that has no profile yet; if profiling fails, the job fails."""
    entry, job = state.entry, state.entry.job
    assert state.prepared is not None
    for name in job.benchmark:
        if all(path.exists() for path in profile_paths(entry.folder, name)):
            continue
        begin_step(f"profiling {state.result.name}, {name}")
        task = profiling_task(entry.index, job, state.prepared, name, entry.folder)
        try:
            entry.launcher.call_ranks(task, timeout_s=job.trial_timeout_s)
        except JobFailed as error:
            fail_job(state, error.failure)
            return
