"""The first stage of a sweep: preparing the data of every job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from fastloop.core.launcher import Launcher
from fastloop.core.machine import describe_machine
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.result import Result
from fastloop.core.types import Failure, FailureKind, JobFailed, Unsupported
from fastloop.data.same_crops import COMPARED_CROPS
from fastloop.fastloader import has_core
from fastloop.processes.environments import build_environment, environment_for, read_environment
from fastloop.sweep.early_check import reason_against
from fastloop.sweep.job_identity import trial_key
from fastloop.sweep.job_state import JobState
from fastloop.sweep.resume import continue_job, fail_or_keep
from fastloop.sweep.settings import SweepSettings
from fastloop.trial.job import Job
from fastloop.trial.job_context import compares_crops
from fastloop.trial.support import check_job_libraries


def prepare_all(
    states: Sequence[JobState],
    settings: SweepSettings,
    advance: Callable[[str], None],
    known: dict[str, PreparedData | Failure] | None = None,
) -> None:
    """Fetch every dataset, write every store, and record the data's properties in each result.

    known: the outcomes of earlier calls; this call adds its own.
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
    """The reason why the job's data is not prepared, or None.

    builds: for each requirements of a job, the failure to build their environment, or None. This
    job's is added.
    """
    if reason := reason_against(job, launcher):
        return Failure(kind=FailureKind.UNSUPPORTED, message=reason)
    if (key := repr(job.requirements)) not in builds:
        builds[key] = _build_failure(job)
    return builds[key]


def describe_environment(launcher: Launcher) -> dict[str, Any]:
    """The description of the machine, with the engine of FastLoader as one of the versions.

    The packages of an environment of the job's own replace those of this process.
    """
    machine = describe_machine()
    versions = machine["versions"] | {"FastLoader's engine": "native" if has_core() else "python"}
    if launcher.environment is not None:
        # An environment that could not be built has no packages, and its job no trials.
        with suppress(Unsupported):
            versions |= read_environment(launcher.environment).packages
    return machine | {"versions": versions}


def _set_up_job(
    state: JobState, now: Result, prepared: PreparedData, settings: SweepSettings
) -> str:
    """Make the job ready for its trials; a message if earlier trials can't be used, else empty."""
    state.prepared = prepared
    fields = _data_fields(now, state.entry.job, prepared)
    if state.owns_result:
        state.update(**fields)
        return ""
    message = continue_job(state, replace(now, **fields), settings)
    if state.is_running:
        state.begin()
    return message


def prepare_job(
    job: Job, launcher: Launcher, compares_checksums: bool = False, most_s: float | None = None
) -> PreparedData:
    """The job's data, prepared in its own process. Raises JobFailed, also if no sample is
    read or written for `trial_timeout_s`, or the job's environment can't be built.

    compares_checksums: read all existing files, and write damaged ones again. most_s: seconds after
    which it fails; None: there is no such limit.
    """
    if failure := _build_failure(job):
        raise JobFailed(failure)
    request = job.data_request
    # A stream may be endless, so its whole preparation has a time limit. Other data may take hours:
    # only the time without progress is limited.
    if isinstance(job.dataset, StreamingDataset):
        limit_s = job.trial_timeout_s if most_s is None else min(job.trial_timeout_s, most_s)
        return launcher.call(request.prepare, compares_checksums, timeout_s=limit_s)
    return launcher.call(
        request.prepare_within, job.trial_timeout_s, compares_checksums, timeout_s=most_s
    )


def forecast_preparation_s(job: Job, launcher: Launcher, most_s: float) -> float:
    """About the seconds that reading the job's data takes, see DataRequest.forecast_s.

    Raises JobFailed, also if the first samples take longer than `most_s`.
    """
    if failure := _build_failure(job):
        raise JobFailed(failure)
    return launcher.call(job.data_request.forecast_s, timeout_s=most_s)


def _build_failure(job: Job) -> Failure | None:
    """Build the job's environment, if it asks for that and lacks it; the failure, or None.

    A job that lacks its environment and does not ask for it fails, too.
    """
    environment = environment_for(job.requirements)
    if environment is None:
        return None
    try:
        check_job_libraries(job)
        if job.build_environment:
            build_environment(environment)
    except Unsupported as error:
        return Failure(kind=FailureKind.UNSUPPORTED, message=str(error))
    return None


def _prepare_or_failure(
    job: Job, launcher: Launcher, most_s: float | None
) -> PreparedData | Failure:
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
