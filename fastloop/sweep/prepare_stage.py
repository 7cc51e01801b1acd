"""Prepare the data of every job, as the first stage of a sweep: fetch datasets and write stores."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from fastloop.core.launcher import Launcher
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Result
from fastloop.core.types import Failure, FailureKind, JobFailed
from fastloop.data.same_crops import COMPARED_CROPS
from fastloop.sweep.early_check import reason_against
from fastloop.sweep.environment_facts import describe_environment
from fastloop.sweep.job_identity import trial_key
from fastloop.sweep.job_state import JobState
from fastloop.sweep.prepare_job import build_job_environment, prepare_job
from fastloop.sweep.resume import continue_job, fail_or_keep
from fastloop.sweep.settings import SweepSettings
from fastloop.trial.job import Job
from fastloop.trial.job_check import compares_crops


def prepare_all(
    states: Sequence[JobState],
    settings: SweepSettings,
    advance: Callable[[str], None],
    known: dict[str, PreparedData | Failure] | None = None,
) -> None:
    """Fetch every dataset, write every store, and record the data's properties in each result.

    advance: called with a line about each job as its preparation begins. known: the outcomes of
    earlier calls, to which this call adds its own; None: there are none.
    """
    prepared = {} if known is None else known
    builds: dict[str, Failure | None] = {}
    for state in states:
        job, launcher = state.entry.job, state.entry.launcher
        advance(f"preparing {state.result.name}")
        failure = _early_failure(job, launcher, builds)
        # A resumed job writes nothing yet: its earlier result stays on disk until it is known
        # whether its trials can be kept.
        now = replace(state.entry.result, environment=describe_environment(launcher))
        if state.owns_result:
            state.result = now
            state.begin()
        key = repr((job.data_request, job.requirements))
        # Jobs with the same data share its preparation, or its failure.
        if failure is None and key not in prepared:
            prepared[key] = _prepare_or_failure(job, launcher, state.entry.most_prepare_s)
        outcome = failure or prepared[key]
        if isinstance(outcome, Failure):
            message = fail_or_keep(state, now, outcome)
        else:
            message = _set_up_job(state, now, outcome, settings)
        if message:
            tqdm.write(message, file=sys.stderr)


def _early_failure(
    job: Job, launcher: Launcher, builds: dict[str, Failure | None]
) -> Failure | None:
    """The reason why the job's data can't be prepared here; None if there is no such reason.

    builds: requirements of a job -> the failure to build their environment, or None. This job's
    outcome is added.
    """
    if reason := reason_against(job, launcher):
        return Failure(kind=FailureKind.UNSUPPORTED, message=reason)
    if (key := repr(job.requirements)) not in builds:
        builds[key] = build_job_environment(job)
    return builds[key]


def _set_up_job(
    state: JobState, now: Result, prepared: PreparedData, settings: SweepSettings
) -> str:
    """Make the job ready for its trials, and return a message about its earlier result.

    The message is empty if there is nothing to say. now: the job's result before any trial, with
    the present code and machine.
    """
    state.prepared = prepared
    fields = _data_fields(now, state.entry.job, prepared)
    if state.owns_result:
        state.update(**fields)
        return ""
    message = continue_job(state, replace(now, **fields), settings)
    if state.is_running:
        state.begin()
    return message


def _prepare_or_failure(
    job: Job, launcher: Launcher, most_s: float | None
) -> PreparedData | Failure:
    """Prepare the job's data; returns the failure if that is not possible."""
    try:
        return prepare_job(job, launcher, most_s=most_s)
    except JobFailed as error:
        return error.failure


def _data_fields(result: Result, job: Job, prepared: PreparedData) -> dict[str, Any]:
    """The fields of a result that are set once its data is prepared."""
    return {
        "dataset": prepared.label,
        "fingerprint": prepared.fingerprint,
        "content": prepared.content,
        "decoder_equivalence_id": prepared.decoder_equivalence_id,
        "pixels_off": prepared.pixels_off,
        "key": trial_key(result, job, prepared),
        "num_samples": prepared.num_samples,
        "sample_nbytes": prepared.sample_nbytes,
        "prepare_s": prepared.seconds,
        "disk_mib": prepared.disk_mib,
        "random": prepared.random,
        "compared_crops": COMPARED_CROPS if compares_crops(job) else 0,
        "skipped": [reason for _, reason in prepared.broken],
    }
