"""Compute fingerprints that are equal for interchangeable trials, which a resumed sweep may pool.

`config_hash` is the fingerprint of a job's configuration. `trial_key` also contains all else on
which a trial depends, such as the data, the code and the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.sweep.job_config import flatten, job_config
from fastloop.sweep.request import JobRequest

# --cfg, --help and completion import this module, and must not wait for torch.
if TYPE_CHECKING:
    from fastloop.core.prepared_data import PreparedData
    from fastloop.core.result import Result
    from fastloop.trial.job import Job

NON_IDENTITY = ("trials", "trial_timeout_s", "build_environment")
"""Settings that do not distinguish trials: their number, their time limit, and who builds their
environment."""
ROOT = ".root"
"""Suffix of the names of settings that are folders. A default folder is below the outputs folder,
and does not distinguish trials. A folder that the command names may be on another disk, and so
distinguishes trials."""


def config_hash(request: JobRequest) -> str:
    """A hash of the job's configuration, without settings that do not distinguish trials."""
    return fingerprint(sorted(_identity(request).items()))


def _identity(request: JobRequest) -> dict[str, str]:
    """The settings that distinguish a trial from others, by dotted name."""
    values = flatten(job_config(request.config))
    # The launcher is no part of the job's configuration, but the number of its processes changes a
    # trial.
    if (size := request.launcher.world_size) > 1:
        values |= {"world_size": size, "backend": request.config["launcher"]["backend"]}
    named = {override.lstrip("+").partition("=")[0] for override in request.overrides}
    return {
        name: repr(value)
        for name, value in values.items()
        if name not in NON_IDENTITY and (name in named or not name.endswith(ROOT))
    }


def trial_key(result: Result, job: Job, prepared: PreparedData) -> str:
    """A fingerprint of all on which a trial of the job depends; equal for interchangeable trials.

    result: the job's result, with the description of the environment and the tag `config_hash`.
    """
    from fastloop.core.protocols import HasFiles

    machine = result.environment
    machine_fields = ("code", "versions", "python", "host", "cpu", "cores_usable", "gpus")
    # The order of the options must stay as it is: another order would change every key.
    options = [
        job.loader,
        job.loader.store,
        job.order,
        job.placement,
        job.model,
        job.decoder,
        job.transform,
        job.collate,
        job.execution,
        *job.benchmark.values(),
    ]
    order_files = job.order.files() if isinstance(job.order, HasFiles) else []
    return fingerprint(
        result.tags["config_hash"],
        prepared.fingerprint,
        [machine[name] for name in machine_fields],
        # The field `code` covers fastloop's own code, but an option may be code of a user.
        [source_fingerprint(option) for option in options],
        [file_fingerprint(path) for path in order_files],
    )
