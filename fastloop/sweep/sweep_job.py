"""A job of a sweep before it runs: `SweepJob`, which `sweep_job` makes from a request.

The parameters and tags that the tracker logs for the job are gathered here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloop.core.launcher import Launcher
from fastloop.core.machine import describe_machine
from fastloop.core.result import Result
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Unsupported
from fastloop.processes.rank_group import resolve_device
from fastloop.sweep.job_config import LOADER_BATCH_SIZE, flatten
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """A job of a sweep, the folder of its files, and its result before it runs."""

    index: int
    """Position among the command's jobs, by which the other ranks under torchrun find the job."""
    job: Job
    launcher: Launcher
    folder: Path
    """The folder of the job's files."""
    config_yaml: str
    result: Result
    """The result before the job runs."""
    earlier: Result | None = None
    """The job's result in an interrupted sweep that is resumed; None otherwise."""
    most_prepare_s: float | None = None
    """Seconds after which preparing the job's data fails; None: there is no such limit."""


def sweep_job(request: JobRequest, name: str, index: int) -> SweepJob:
    """The SweepJob of a request, with a result that has no trials yet.

    name: the job's name in tables. index: its position among the command's jobs.
    """
    return SweepJob(
        index=index,
        job=request.job,
        launcher=request.launcher,
        folder=request.folder,
        config_yaml=request.config_yaml,
        result=Result(
            name=name,
            loader=request.choices["loader"],
            dataset=request.job.dataset.label,
            params=_run_params(request),
            tags=_run_tags(request),
        ),
    )


def _run_params(request: JobRequest) -> dict[str, Any]:
    """The parameters that the tracker logs for a job, by name.

    These are the settings by dotted name, the chosen options by group, and the number of ranks as
    world_size.
    """
    choices = {group.rpartition("/")[2]: choice for group, choice in request.choices.items()}
    is_honoured = traits_of(LoaderTraits, request.job.loader).honours_batch_size
    batch_size = {} if is_honoured else {"batch_size": LOADER_BATCH_SIZE}
    world_size = {"world_size": request.launcher.world_size}
    return flatten(request.config) | choices | batch_size | world_size


def _run_tags(request: JobRequest) -> dict[str, str]:
    """The tags that the tracker sets for a job, such as its sweep, machine and device, by name."""
    # If this machine lacks the device, the tag is the setting; the job fails later, with a reason.
    try:
        device = str(resolve_device(request.job.device))
    except Unsupported:
        device = request.job.device
    machine = describe_machine()
    return {
        "sweep": "/".join(request.sweep_folder.parts[-2:]),
        "config_hash": config_hash(request),
        "git_commit": machine["git_commit"],
        "host": machine["host"],
        "device": device,
        "mlflow.runColor": request.colour,
        **({"concurrent": "true"} if request.sweep.allow_concurrent else {}),
        **({} if request.job.same_data else {"unverified": "true"}),
    }
