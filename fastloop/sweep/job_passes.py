"""Passes of one job besides its timed trials: shadow, one process, instrumentation, profiling.

A job that fails in one of them ends with its reason, and the others of its sweep go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from tqdm import tqdm

from fastloop.core.result import Calls, Trial
from fastloop.core.spans import now_ns
from fastloop.core.text import without_passwords
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.data.preparation import find_damage
from fastloop.sweep.job_state import JobState
from fastloop.sweep.merge_ranks import merge_passes, merge_shadows
from fastloop.trial.job import Job
from fastloop.trial.profiling import profile_paths
from fastloop.trial.shadow import SHADOW_TIME
from fastloop.trial.tasks import instrumentation_task, profiling_task, shadow_task
from fastloop.trial.trial_process import run_trial

MAX_ONE_PROCESS_TRIALS = 3
"""Most trials in one process that a job of several ranks is compared with, if the sweep does not
measure the same job in one process."""


def run_shadow(state: JobState, trial: Trial, begin_step: Callable[[str], None]) -> None:
    """Run the shadow of a trial; the job fails if it does not deliver the same data there."""
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
    """Run the passes that follow a job's trials, and trials in one process to compare with."""
    # the drawn trial was one of an earlier session, which was interrupted before its shadow
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
    # A loader that delivers wrong samples may have read a damaged store, which is not its fault.
    damage = ""
    if failure.kind == FailureKind.INVALID and state.prepared is not None:
        damage = find_damage(state.prepared)
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
        for number in range(0 if is_known else num_one_process_trials(job)):
            begin_step(f"in one process, trial {number + 1} of {state.result.name}")
            trial = entry.launcher.call(
                run_trial, job, state.prepared, number, now_ns(), timeout_s=job.trial_timeout_s
            )
            trials = [*trials, trial]
    # the trials of several ranks stay valid
    except JobFailed as error:
        tqdm.write(f"{state.result.name}: {error} (in one process)", file=sys.stderr)
    rates = {
        name: [trial.benchmarks[name].samples_per_s for trial in trials] for name in job.benchmark
    }
    state.update(one_process=rates if trials else state.result.one_process)


def num_one_process_trials(job: Job) -> int:
    """Number of trials in one process, to compare with, that a job of several ranks needs."""
    return min(job.most_trials, MAX_ONE_PROCESS_TRIALS)


def _run_instrumentation(state: JobState, begin_step: Callable[[str], None]) -> None:
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
