"""A process that ends when its parent does, however that ends.

Without it a kill -9 of the command would leave its processes running at full speed. Linux only:
other systems have no PR_SET_PDEATHSIG. The tie is not inherited, so every process ties itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tie(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for that signal at the parent's death; end here if that has come already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)
