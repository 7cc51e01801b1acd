"""The entry point of `python -m fastloop.run`: measure and compare the jobs of a command line.

Most modules are imported inside the functions, because signals must be handled before the imports.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from fastloop.processes.command_endings import (
    exit_at_once_on_signals,
    exit_on_system_error,
    open_standard_streams,
    quiet_on_closed_pipe,
)

if TYPE_CHECKING:
    from fastloop.processes.torchrun_env import TorchrunProcess


def main() -> None:
    """Run the command line; exits with 1 if a job failed or none could run."""
    open_standard_streams()
    exit_at_once_on_signals()
    # This hides torch's warnings about addresses without a host name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from fastloop.core.types import UsageError
    from fastloop.processes.signals import restore_default_signals

    try:
        with quiet_on_closed_pipe():
            _run_rank()
    except UsageError as error:
        # Only one of torchrun's processes prints the error. Without torchrun every process prints
        # it, because a RANK may then be the error itself.
        is_silent = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
        sys.exit(1 if is_silent else str(error))
    finally:
        restore_default_signals()


def _run_rank() -> None:
    """Run the command. Under torchrun, rank 0 runs it, and other ranks follow its orders."""
    import signal

    from fastloop.processes.parent_death import die_with_parent
    from fastloop.processes.torchrun_env import torchrun_process
    from fastloop.sweep.followers import dismiss_followers_on_exit

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(signal.SIGTERM)  # or this process survives a kill -9 of torchrun
    process = torchrun_process()
    if process is None:
        _measure_command()
    elif process.rank == 0:
        with dismiss_followers_on_exit(process):
            _measure_command()
    else:
        _exit_at_once(_follow_command(process))


def _measure_command() -> None:
    """Compose the jobs of the command line and measure them; exits with the status."""
    from fastloop.config.compose import compose_all, compose_changed
    from fastloop.core.outputs_folder import remove_unused
    from fastloop.processes.signals import exit_if_signalled
    from fastloop.sweep.forecast import describe_plan
    from fastloop.sweep.measure import measure, measure_one_job

    requests = compose_all(measure_one_job, describe_plan)
    if not requests:
        return
    try:
        with exit_on_system_error(lambda: "; finished trials are kept"):
            if requests[0].sweep.explain:
                from fastloop.explain.explain_job import job_explainer

                status = measure(requests, job_explainer(requests, compose_changed))
            else:
                status = measure(requests)
            exit_if_signalled()
            sys.exit(status)
    finally:
        remove_unused(requests[0].sweep_folder)


def _follow_command(process: TorchrunProcess) -> int:
    """Execute the commands of rank 0 in another rank; returns the exit status."""
    from fastloop.config.compose import compose_silently
    from fastloop.core.types import SignalExit
    from fastloop.sweep.followers import report_compose_error, run_as_follower

    try:
        requests, error = compose_silently()
        if error:
            return report_compose_error(process, error)
        return run_as_follower(process, requests) if requests else 0
    except SignalExit as signal_exit:
        return int(signal_exit.code or 0)


def _exit_at_once(status: int) -> None:
    """Exit with the status, without shutting down the interpreter.

    A thread that waits for torchrun's key-value store would abort the process if it returned during
    the shutdown.
    """
    import atexit

    atexit._run_exitfuncs()  # removes multiprocessing's folder of sockets
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
