"""Measure a sweep, the jobs of one command, and return the command's exit status.

If one of Hydra's launchers distributes the jobs, `measure_one_job` measures a single job. Most
modules are imported inside the functions: --cfg, --help and completion import this module, and must
not wait for torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from fastloop.core.outputs_folder import remove_unused
from fastloop.core.types import MachineBusy, UsageError
from fastloop.processes.signals import handle_signals
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.core.protocols import Tracker
    from fastloop.sweep.explain_stage import ExplainJob


def measure(requests: Sequence[JobRequest], explain_job: ExplainJob | None = None) -> int:
    """Measure the requests as one sweep, and return the exit status.

    The sweep has the machine to itself, unless allow_concurrent=true is given without wait=true.
    explain_job: the function that explains a job if explain=true; None: no job is explained.
    """
    # Hydra's launchers have measured the jobs in other processes already.
    if requests[0].is_done:
        from fastloop.sweep.print_outcome import print_measured

        return print_measured(requests)
    # After handle_signals(), a signal raises an exception. An import that it interrupts leaves half
    # of a module, and can't be repeated. So modules are imported before, while signals still end
    # the command at once.
    from fastloop.sweep.early_check import reason_against_sweep
    from fastloop.sweep.locked_sweep import run_locked_sweep

    import_module("fastloop.processes.rank_commands")
    _import_tracker(requests[0].tracker)
    handle_signals()
    reason = reason_against_sweep(requests)
    if not reason:
        try:
            return run_locked_sweep(requests, explain_job)
        except (MachineBusy, UsageError) as error:
            reason = str(error)
    remove_unused(requests[0].sweep_folder)
    print(reason, file=sys.stderr)
    return 1


def measure_one_job(requests: Sequence[JobRequest]) -> int:
    """Measure one job of a sweep; other processes or machines measure its other jobs.

    requests: the request for that job alone. Returns 0 once the job's result is written, even if
    the job has failed.
    """
    from fastloop.sweep.locked_sweep import run_locked_job

    (request,) = requests
    run_locked_job(request)
    return 0


def _import_tracker(tracker: Tracker) -> None:
    """Import the modules that the tracker declares in its TrackerTraits."""
    # These imports cost no time, because the first trial waits for the forkserver, which is still
    # importing. Their errors are ignored here, because they are reported when a run is started. For
    # example, MLflow's import fails for a user without a home folder.
    from fastloop.core.traits import TrackerTraits, traits_of

    with suppress(Exception):
        for name in traits_of(TrackerTraits, tracker).imports:
            import_module(name)
