"""Jobs in rounds: prepare, then trial k of every job in round k, then one instrumented pass a job.

Rounds are interleaved, so that machine noise affects all jobs equally. Every result is written as
soon as it is there; a job that fails becomes a row with its reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tqdm import tqdm

from fastloop.core.interleave import rounds, within
from fastloop.core.plan import PreparedData
from fastloop.core.result import Result, Trial
from fastloop.core.spans import now_ns, wall_ms
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.data.prepare import find_damage
from fastloop.sweep.caveats import caveats, option_caveats
from fastloop.sweep.explanations import (
    ExplainJob,
    explain_all,
    explanation_caveats,
    num_explain_steps,
)
from fastloop.sweep.job_state import JobState, SweepJob
from fastloop.sweep.merge_ranks import merge_passes, merge_shadows, merge_trials
from fastloop.sweep.prepare_stage import prepare_all
from fastloop.sweep.progress import Progress, round_line
from fastloop.sweep.settings import SweepSettings
from fastloop.sweep.tracking import SweepTracker
from fastloop.trial.job import Job
from fastloop.trial.profiling import profile_paths
from fastloop.trial.run import run_trial
from fastloop.trial.shadow import SHADOW_TIME
from fastloop.trial.tasks import instrumentation_task, profiling_task, shadow_task, trial_task

MAX_ONE_PROCESS_TRIALS = 3
"""Trials in one process, to compare with, of a job of several ranks that the sweep does not also
measure in one process."""


RunRound = Callable[[Sequence[JobState], int], list[str]]
"""(jobs, number) -> the names of those that go on, once each that lacks it has run that trial; data
is prepared for a job that runs for the first time."""
Schedule = Callable[[Sequence[JobState], RunRound], Iterable[JobState]]
"""Decides which jobs run in which round, and returns those whose passes follow."""


def run_sweep(
    entries: Sequence[SweepJob],
    settings: SweepSettings,
    tracking: SweepTracker,
    progress: Progress,
    explain_job: ExplainJob | None = None,
    schedule: Schedule | None = None,
) -> list[Result]:
    """Run all jobs, and return their results in the same order.

    explain_job: what explains a job after the last round, with explain=true; None: nothing can.
    schedule: None: trial k of every job in round k. A job that it never runs leaves no files.
    """
    states = [JobState(entry, tracking) for entry in entries]
    session_ms = wall_ms()
    try:
        finishing: Iterable[JobState] = states
        if schedule is None:
            prepare_all(states, settings, progress.begin_step)
            _run_rounds(states, settings, session_ms, progress)
        else:
            finishing = schedule(states, _round_runner(settings, session_ms, progress.begin_step))
        for state in finishing:
            _finish_passes(state, states, settings.profile, progress.begin_step)
        if settings.explain:
            explain_all(states, explain_job, progress)
        for state in states:
            if state.is_running and state.prepared is not None:
                flags = caveats(state.result, [other.result for other in states])
                flags += option_caveats(state.entry.job, state.result.sample_nbytes)
                flags += explanation_caveats(state)
                state.update(flags=flags)
                state.end("FINISHED")
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt | SystemExit) else "FAILED"
        name = "SystemExit" if isinstance(error, SystemExit) else type(error).__name__
        for state in states if schedule is None else [each for each in states if each.has_begun]:
            with contextlib.suppress(OSError):  # may be the very error that ends the sweep
                state.abort(status, f"{name}: {error}")
        raise
    return [state.result for state in states]


def _round_runner(
    settings: SweepSettings, session_ms: int, begin_step: Callable[[str], None]
) -> RunRound:
    """The function that runs a schedule's rounds."""
    prepared: dict[str, PreparedData | Failure] = {}

    def run_round(states: Sequence[JobState], number: int) -> list[str]:
        new = [state for state in states if state.prepared is None and not state.has_begun]
        prepare_all(new, settings, begin_step, prepared)
        return _run_round(states, number, session_ms, begin_step)

    return run_round


def num_progress_steps(entries: Sequence[SweepJob], settings: SweepSettings) -> int:
    """Number of times that run_sweep begins a step if nothing fails."""
    earlier = [entry.earlier for entry in entries]
    return len(entries) + _num_steps_left(entries, earlier, settings)


def _num_steps_left(
    entries: Sequence[SweepJob], done: Sequence[Result | None], settings: SweepSettings
) -> int:
    """Number of steps after preparing; `done`: what each job has finished."""
    in_one_process = [entry.job for entry in entries if entry.launcher.world_size == 1]
    steps = 0
    for entry, result in zip(entries, done, strict=True):
        job, num_done = entry.job, len(result.trials) if result else 0
        needs_extra = entry.launcher.world_size > 1 and job not in in_one_process
        extra = _num_one_process_trials(job) if needs_extra else 0
        passes = (1 + settings.profile) * len(job.benchmark)
        shadows = 0 if result and result.shadow else 1
        steps += max(0, job.trials + shadows + passes + extra - num_done)
        if settings.explain and not (result and result.explanation):
            steps += num_explain_steps(job, settings.tries)
    return steps


def _run_rounds(
    states: Sequence[JobState], settings: SweepSettings, session_ms: int, progress: Progress
) -> None:
    start_ns, num_done = now_ns(), 0
    num_trials = {state: state.entry.job.trials for state in states if state.is_running}
    all_rounds = rounds(num_trials, interleave=settings.interleave)
    for number, taking_part in within(all_rounds, settings.seconds):
        names = _run_round(taking_part, number, session_ms, progress.begin_step)
        if not names:
            continue
        num_done += len(names)
        running = [state for state in states if state.is_running]
        done = [state.result for state in running]
        left = _num_steps_left([state.entry for state in running], done, settings)
        title = f"round {number + 1} of {max(num_trials.values())}"
        if not settings.interleave:
            title = f"trial {number + 1} of {taking_part[0].entry.job.trials} of {names[0]}"
        progress.end_round(round_line(title, start_ns, num_done, left))


def _run_round(
    states: Sequence[JobState], number: int, session_ms: int, begin_step: Callable[[str], None]
) -> list[str]:
    """Run trial `number` of the jobs that lack it; returns the names of those that go on."""
    running = [state for state in states if state.is_running and number not in state.trial_numbers]
    names = [state.result.name for state in running]
    for state in running:
        entry, prepared = state.entry, state.prepared
        assert prepared is not None
        begin_step(f"trial {number + 1} of {state.result.name}")
        task = trial_task(entry.index, entry.job, prepared, number)
        try:
            answers = entry.launcher.call_ranks(task, timeout_s=entry.job.trial_timeout_s)
        except JobFailed as error:
            _fail(state, error.failure)
        else:
            merged = merge_trials([answer.value for answer in answers])
            left = [command for answer in answers for command in answer.left_running]
            trial = replace(merged, session_ms=session_ms, left_running=left)
            trials = [*state.result.trials, trial]
            state.update(trials=trials, rounds=[*state.result.rounds, names])
            if number == state.shadow_number:
                _run_shadow(state, merged, begin_step)
    return [state.result.name for state in running if state.is_running]


def _run_shadow(state: JobState, trial: Trial, begin_step: Callable[[str], None]) -> None:
    """Run the shadow of a trial; the job fails if it does not deliver the same data there."""
    entry, job = state.entry, state.entry.job
    assert state.prepared is not None
    begin_step(f"comparing the data of {state.result.name}")
    repeats = {name: measured.repeats for name, measured in trial.benchmarks.items()}
    task = shadow_task(entry.index, job, state.prepared, trial.number, repeats)
    try:
        answers = entry.launcher.call_ranks(task, timeout_s=SHADOW_TIME * job.trial_timeout_s)
    except JobFailed as error:
        _fail(state, error.failure)
    else:
        state.update(shadow=merge_shadows([answer.value for answer in answers]))


def _finish_passes(
    state: JobState, states: Sequence[JobState], profile: bool, begin_step: Callable[[str], None]
) -> None:
    """Run what follows a job's trials: trials in one process to compare with, and its passes."""
    if state.is_running and state.result.shadow is None:  # its trial ran in an earlier session
        _run_shadow(state, state.result.trials[-1], begin_step)
    if state.is_running and state.entry.launcher.world_size > 1:
        _run_one_process(state, states, begin_step)
    if state.is_running:
        _run_instrumentation(state, begin_step)
    if state.is_running and profile:
        _run_profiling(state, begin_step)


def _fail(state: JobState, failure: Failure) -> None:
    """End the job; with several ranks, print the traceback of the one that failed."""
    if failure.details and state.entry.launcher.world_size > 1 and not failure.kind.is_verdict:
        tqdm.write(failure.details.rstrip(), file=sys.stderr)
    damage = ""
    if failure.kind == FailureKind.INVALID and state.prepared is not None:
        damage = find_damage(state.prepared)  # then it is not the loader's fault
    state.fail(replace(failure, message="; ".join(filter(None, [failure.message, damage]))))


def _run_one_process(
    state: JobState, states: Sequence[JobState], begin_step: Callable[[str], None]
) -> None:
    """Record the rates of one process doing the same work, in this sweep or in extra trials."""
    entry, job = state.entry, state.entry.job
    in_sweep = [
        other.result.trials
        for other in states
        if other.entry.job == job and other.entry.launcher.world_size == 1 and other.is_running
    ]
    trials: list[Trial] = in_sweep[0] if in_sweep else []
    is_known = bool(in_sweep or state.result.one_process)
    try:
        for number in range(0 if is_known else _num_one_process_trials(job)):
            begin_step(f"in one process, trial {number + 1} of {state.result.name}")
            arguments = (run_trial, job, state.prepared, number, now_ns())
            trials = [*trials, entry.launcher.call(*arguments, timeout_s=job.trial_timeout_s)]
    except JobFailed as error:  # does not invalidate the trials of several ranks
        tqdm.write(f"{state.result.name}: {error} (in one process)", file=sys.stderr)
    rates = {
        name: [trial.benchmarks[name].samples_per_s for trial in trials] for name in job.benchmark
    }
    state.update(one_process=rates if trials else state.result.one_process)


def _num_one_process_trials(job: Job) -> int:
    return min(job.trials, MAX_ONE_PROCESS_TRIALS)


def _run_instrumentation(state: JobState, begin_step: Callable[[str], None]) -> None:
    entry, job = state.entry, state.entry.job
    assert state.prepared is not None
    for name in job.benchmark:
        if name in state.result.attribution:
            continue
        begin_step(f"instrumented pass of {state.result.name}, {name}")
        task = instrumentation_task(entry.index, job, state.prepared, name)
        limit_s = job.trial_timeout_s
        try:
            answers = entry.launcher.call_ranks(task, timeout_s=limit_s, observed=True)
        except JobFailed as error:
            _fail(state, error.failure)
            return
        state.update(attribution=state.result.attribution | {name: merge_passes(answers)})


def _run_profiling(state: JobState, begin_step: Callable[[str], None]) -> None:
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
            _fail(state, error.failure)
            return
