"""Words for the exit status of a process, for messages."""

from __future__ import annotations

import signal


def describe_exit(status: int | None) -> str:
    """Return "killed by SIGKILL", "exit status 3" or alike.

    status: the exit code as multiprocessing and subprocess tell it: the number of a signal is
    negative; None: it is not known.
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
