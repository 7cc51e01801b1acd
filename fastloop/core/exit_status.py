"""The exit status of a process in words."""

from __future__ import annotations

import signal


def describe_exit(status: int | None) -> str:
    """Words for the end of a process, such as "killed by SIGKILL" or "exit status 3".

    status: the exit code as multiprocessing and subprocess report it: minus the number of the
    signal if a signal ended the process; None: it is not known.
    """
    if status is None:
        return "exit status unknown"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        # Real-time signals have numbers, but no names.
        return f"killed by signal {-status}"
