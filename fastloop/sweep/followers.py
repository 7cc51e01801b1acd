"""Run a command under torchrun: rank 0 runs the sweep, and the other ranks follow.

The other ranks, called followers, execute the tasks that rank 0 sends. They print nothing, except
an error if they lose rank 0.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from fastloop.processes.signals import handle_signals_silently
from fastloop.processes.torchrun_env import TorchrunProcess
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.request import JobRequest


@contextmanager
def dismiss_followers_on_exit(process: TorchrunProcess) -> Iterator[None]:
    """A context that ends the followers of rank 0 on exit, also after an error."""
    from fastloop.processes.rank_commands import followers_of

    try:
        yield
    finally:
        # If torchrun's key-value store has ended, the followers have ended too.
        with suppress(ConnectionError):
            followers_of(process).dismiss()


def assemble(process: TorchrunProcess, requests: Sequence[JobRequest]) -> str:
    """Wait until all followers have composed the same jobs as this rank, which is rank 0.

    Returns an error message, which is empty on success, and if no job has several ranks.
    """
    from fastloop.core.types import JobFailed
    from fastloop.processes.rank_commands import followers_of, identity_of

    if all(request.launcher.world_size == 1 for request in requests):
        return ""
    try:
        followers_of(process).assemble(identity_of(map(config_hash, requests)))
    except (ConnectionError, JobFailed) as error:
        return str(error)
    return ""


def run_as_follower(process: TorchrunProcess, requests: Sequence[JobRequest]) -> int:
    """Execute rank 0's commands until rank 0 dismisses this process; returns the exit status.

    Prints nothing, except an error if rank 0 is lost.
    """
    from fastloop.processes.rank_commands import identity_of, run_follower
    from fastloop.trial.tasks import task_from

    handle_signals_silently()
    jobs = [request.job for request in requests]
    identity = identity_of(map(config_hash, requests))
    try:
        if run_follower(process, identity, lambda command: task_from(command, jobs)):
            return 0
        message = f"lost rank 0 of {process.world_size} ({process.address})"
    except ConnectionError as error:
        message = str(error)
    print(f"rank {process.rank}: {message}", file=sys.stderr)
    return 1


def report_compose_error(process: TorchrunProcess, error: str) -> int:
    """Report to rank 0 that this process could not compose its jobs; returns the exit status.

    error: the message with the reason.
    """
    from fastloop.processes.rank_commands import join_without_jobs

    with suppress(ConnectionError):
        join_without_jobs(process, error)
    return 1
