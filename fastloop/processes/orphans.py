"""End orphans: descendants of this process that their own parents have left running."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psutil

from fastloop.core.text import printable

KILL_TIMEOUT_S = 30
"""Maximum seconds to wait for the end of a process that was killed."""
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
"""Options of Linux's prctl(): set or get if a process adopts its orphans; see prctl(2)."""
COMMAND_LENGTH = 60
"""Maximum number of characters of a command that are shown."""


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Make this process adopt its orphans inside the context; on Linux only.

    A descendant then becomes a child of this process when its own parent ends. Otherwise init would
    adopt the descendant, and its origin would be lost.
    """
    if sys.platform != "linux":
        yield
        return
    libc = ctypes.CDLL(None)
    before = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def child_pids() -> set[int]:
    """Process ids of this process's children."""
    return {child.pid for child in psutil.Process().children()}


def end_orphans(known: Collection[int], within_s: float) -> list[str]:
    """Kill the adopted children of this process, and their children.

    known: process ids of children to leave alone, in addition to those that multiprocessing has
    started. within_s: seconds in which an orphan may end by itself. Returns the command and the
    process id of each orphan that has not done so.
    """
    commands: list[str] = []
    while orphans := _orphans(known):
        commands += map(_command, psutil.wait_procs(orphans, timeout=within_s)[1])
        for orphan in orphans:
            with contextlib.suppress(psutil.Error):
                orphan.kill()
        # The children of a killed orphan become children of this process. So the loop looks for
        # orphans again, and kills these at once. An orphan that could not be killed is left alone.
        psutil.wait_procs(orphans, timeout=KILL_TIMEOUT_S)
        known = {*known, *(orphan.pid for orphan in orphans)}
        within_s = 0
    return commands


def _orphans(known: Collection[int]) -> list[psutil.Process]:
    """The children that are neither in `known` nor started by multiprocessing in this process."""
    started = {child.pid for child in multiprocessing.active_children()}
    children = psutil.Process().children()
    return [child for child in children if child.pid not in started and child.pid not in known]


def _command(process: psutil.Process) -> str:
    """The command of a process, cut to COMMAND_LENGTH, and the process id."""
    try:
        command = printable(" ".join(process.cmdline()) or process.name())
    except psutil.Error:
        # The process has ended meanwhile.
        command = "unknown"
    if len(command) > COMMAND_LENGTH:
        command = f"{command[:COMMAND_LENGTH]}…"
    return f"{command} (pid {process.pid})"
