"""Jobs with a user's code, prepared as by a command, and the same-data check of their epochs."""

from __future__ import annotations

from options import compose_short_job

from fastloop.config.build_jobs import loader_brings_data, use_loader_data
from fastloop.data.same_data import check_data


def prepare_user_job(*overrides: str):
    """(job, prepared), with the loader's data where no dataset is named, as in a command."""
    job = compose_short_job(*overrides)
    if loader_brings_data(job, {"dataset": "digits"}, overrides):
        job = use_loader_data(job)
    return job, job.data_request.prepare()


def check_epochs(job, prepared, epochs=(0, 1, 2)) -> None:
    plan = job.plan(0)
    with job.loader.open(prepared, plan) as opened:
        for epoch in epochs:
            check_data(prepared, plan, opened(epoch), epoch, same_data=job.same_data)
