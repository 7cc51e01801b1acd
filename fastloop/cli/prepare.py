"""fastloop prepare: download or generate the data and write all stores in advance.

    fastloop prepare [dataset=<dataset>] [loader=<loader>] [<setting>=<value> ...]

Without loader= the stores of all loaders are written. Stores that exist are read, and written
again if they are damaged. fastloop run --help lists the options and settings.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastloop.config.compose import compose_all
from fastloop.core.outputs_folder import remove_unused
from fastloop.core.text import plain_reason
from fastloop.processes.signals import handle_signals, restore_default_signals
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.core.prepared_data import PreparedData


def main() -> None:
    """Prepare the data for the loaders that the command line names, or for all loaders."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    if not any(argument.startswith(("loader=", "loader._target_=")) for argument in sys.argv[1:]):
        # Every loader has its own store.
        sys.argv += ["-m", "loader=glob(*)"]
    requests = compose_all(_prepare_all)
    try:
        sys.exit(_prepare_all([request for request in requests if not request.is_done]))
    finally:
        restore_default_signals()


def _prepare_all(requests: Sequence[JobRequest]) -> int:
    """Prepare the datasets and stores of the requests, each once. Returns 1 on failure, else 0."""
    from fastloop.core.types import FailureKind, JobFailed
    from fastloop.sweep.prepare_job import prepare_job

    handle_signals(lambda: ": what is complete is kept")
    keys: set[str] = set()
    failed: dict[tuple[str, str], list[str]] = {}
    unsupported: dict[tuple[str, str], list[str]] = {}
    status = 0
    for request in requests:
        remove_unused(request.sweep_folder)
        job = request.job
        if (key := repr((job.data_request, job.requirements))) in keys:
            continue
        keys.add(key)
        try:
            print(_summary(prepare_job(job, request.launcher, compares_checksums=True)))
        except JobFailed as error:
            key = request.choices["dataset"], plain_reason(str(error))
            is_unsupported = error.failure.kind == FailureKind.UNSUPPORTED
            reasons = unsupported if is_unsupported else failed
            reasons.setdefault(key, []).append(request.choices["loader"])
            # As in a sweep, a missing library is an error only for a single loader.
            if len(requests) == 1 or not is_unsupported:
                status = 1
    # If data can't be read, only that is printed. Missing libraries of loaders matter later.
    for (dataset, reason), loaders in (failed or unsupported).items():
        print(f"{dataset}, loader {', '.join(loaders)}: {reason}", file=sys.stderr)
    return status


def _summary(prepared: PreparedData) -> str:
    """A line with the size of the data and the time that writing it took."""
    size = f"{prepared.num_samples:,} samples, {prepared.disk_mib:.1f} MiB"
    return f"{prepared.label}: {size}, written in {prepared.seconds:.1f} s: {prepared.folder}"
