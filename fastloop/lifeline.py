"""Importing this ties the process to its parent: when the parent dies, however, so does it.

The forkserver imports it when it preloads, and every process that it forks calls `tie` again,
because the tie is not inherited. Without it a kill -9 of the command would leave the forkserver's
children running at full speed. Linux only: other systems have no PR_SET_PDEATHSIG.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
IMPORTED_BY = os.getpid()
PRELOADED = frozenset(sys.modules)
"""What was imported before: multiprocessing skips silently over a preload that it can't import."""


def tie() -> None:
    """Ask the kernel for SIGKILL at the parent's death; end here if the command has died
    meanwhile."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        command = multiprocessing.parent_process()
        if command is not None and not command.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)


tie()
