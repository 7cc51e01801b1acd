"""python -m fastloop.run: compose all combinations, build the jobs, measure, log and compare."""

from __future__ import annotations

import atexit
import os
import signal
import sys

from fastloop.config.compose import compose_all, compose_silently
from fastloop.core.files import remove_unused
from fastloop.core.types import SignalExit, UsageError
from fastloop.processes.lifecycle import die_with_parent, handle_signals, restore_default_signals
from fastloop.processes.torchrun_env import TorchrunProcess, torchrun_process
from fastloop.sweep.followers import (
    dismiss_followers_on_exit,
    report_compose_error,
    run_as_follower,
)
from fastloop.sweep.measure import measure, measure_one_job


def main() -> None:
    """Run the command line; exits with 1 if a job failed or none could run."""
    # hides warnings of addresses without a host name
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    handle_signals()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(signal.SIGTERM)  # otherwise they survive a kill -9 of torchrun
    try:
        process = torchrun_process()
        if process is None:
            _measure_command()
        elif process.rank == 0:
            with dismiss_followers_on_exit(process):
                _measure_command()
        else:
            _exit_at_once(_follow_command(process))
    except UsageError as error:
        sys.exit(str(error) if os.environ.get("RANK", "0") == "0" else 1)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at exit would fail again
        sys.exit(1)
    finally:
        restore_default_signals()


def _measure_command() -> None:
    requests = compose_all(measure_one_job)
    if not requests:
        return
    try:
        sys.exit(measure(requests))
    except OSError as error:  # a full or lost disk
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        sys.exit(f"{error}; finished trials are kept")
    finally:
        remove_unused(requests[0].sweep_folder)


def _follow_command(process: TorchrunProcess) -> int:
    try:
        requests, error = compose_silently()
        if error:
            return report_compose_error(process, error)
        return run_as_follower(process, requests) if requests else 0
    except SignalExit as signal_exit:
        return int(signal_exit.code or 0)


def _exit_at_once(status: int) -> None:
    """Exit without shutting down the interpreter.

    A thread that waits for the store would abort the process if it returned during the shutdown.
    """
    atexit._run_exitfuncs()  # removes multiprocessing's folder of sockets
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
