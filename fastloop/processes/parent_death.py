"""Make a process end when its parent ends, even if the parent is killed."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

FORKSERVER_OWNER = "FASTLOOP_FORKSERVER_OF"
"""Environment variable with the id of the process that has started the forkserver:
start_method.py sets it, and forkserver_tie.py reads it in the forkserver."""
PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl() that asks for a signal when the parent ends; see prctl(2)."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends.

    Without the signal, a kill -9 of the command would leave its processes running at full speed. If
    the parent has ended already, this process is killed. Only Linux has such a signal: on other
    systems the call has no effect. Children do not inherit the setting, so each process has to call
    this function. number: the signal to send.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        parent = multiprocessing.parent_process()
        # The parent may have ended before prctl(): then no signal will come.
        if parent is not None and not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)


def tie_worker_to_parent(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    """`worker_init_fn` of a DataLoader that ends its workers with their parent."""
    die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        # A forkserver is the kernel's parent of this worker, and lives as long as any of its
        # processes. So the kernel sends no signal when the process that asked for the worker ends.
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    """Kill this process once the process with that sentinel has ended."""
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
