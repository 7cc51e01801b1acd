"""The last module that multiprocessing's forkserver preloads. No other module imports it.

Importing it makes the server end with the command, and records which modules the server has
imported. The record matters because multiprocessing silently skips modules that it can't preload,
and each trial would then take a second longer to start. If the server can't fork, it ends without a
traceback, because the command reports the error.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from fastloop.processes.parent_death import die_with_parent

IMPORTED_BY = os.getpid()
"""Id of the server. Its children inherit this value, and have other ids."""
PRELOADED = frozenset(sys.modules)
"""Modules that the server had imported before this one."""


def _print_error(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    # Children inherit this hook, and print their errors as usual.
    if os.getpid() != IMPORTED_BY or not isinstance(error, OSError):
        sys.__excepthook__(kind, error, at)


sys.excepthook = _print_error
die_with_parent()
