"""Prepare one job's data in a process of the job's environment, which is built first."""

from __future__ import annotations

from fastloop.core.launcher import Launcher
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.types import Failure, FailureKind, JobFailed, Unsupported
from fastloop.processes.environments import build_environment, environment_for
from fastloop.trial.job import Job
from fastloop.trial.support import check_job_libraries


def prepare_job(
    job: Job, launcher: Launcher, compares_checksums: bool = False, most_s: float | None = None
) -> PreparedData:
    """Prepare the job's data in a child process, and return the description of the data.

    Raises JobFailed if the preparation fails, if no sample is read or written for
    `trial_timeout_s`, if preparing a stream takes longer than that in all, or if the job's
    environment can't be built.

    launcher: starts the child process. compares_checksums: read all existing files, and write
    damaged files again. most_s: seconds after which the preparation fails; None: no such limit.
    """
    if failure := build_job_environment(job):
        raise JobFailed(failure)
    request = job.data_request
    # A stream may be endless, so its whole preparation has a time limit. Other data may take hours,
    # so only the time without progress is limited.
    if isinstance(job.dataset, StreamingDataset):
        limit_s = job.trial_timeout_s if most_s is None else min(job.trial_timeout_s, most_s)
        return launcher.call(request.prepare, compares_checksums, timeout_s=limit_s)
    return launcher.call(
        request.prepare_within, job.trial_timeout_s, compares_checksums, timeout_s=most_s
    )


def forecast_preparation_s(job: Job, launcher: Launcher, most_s: float) -> float:
    """Forecast the seconds that reading the job's data takes, see DataRequest.forecast_s.

    Raises JobFailed if reading fails, if the forecast itself takes longer than `most_s` seconds, or
    if the job's environment can't be built.
    """
    if failure := build_job_environment(job):
        raise JobFailed(failure)
    return launcher.call(job.data_request.forecast_s, timeout_s=most_s)


def build_job_environment(job: Job) -> Failure | None:
    """Build the job's environment if it needs one and has build_environment=true.

    Returns None on success, and if the job needs no environment; otherwise the failure. A missing
    environment that may not be built is a failure, too.
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
