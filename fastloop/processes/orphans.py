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
"""Time for a process to exit after it was killed."""
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
"""Options of Linux's prctl() that let a process adopt orphans below it; see prctl(2)."""
COMMAND_LENGTH = 60
"""Maximum number of characters of a command that are shown."""


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Inside the context, descendants of this process become its children when their parent ends.

    Otherwise init would adopt them, and their origin would be lost. Has an effect on Linux only.
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
    """Kill the children of this process that it has not started itself, and their children.

    Returns the command and process id of each that has not ended by itself within `within_s`
    seconds. known: process ids of children to leave alone, such as those of multiprocessing.
    """
    commands: list[str] = []
    while orphans := _orphans(known):
        commands += map(_command, psutil.wait_procs(orphans, timeout=within_s)[1])
        for orphan in orphans:
            with contextlib.suppress(psutil.Error):
                orphan.kill()
        # The children of a killed orphan become children of this process: the loop looks again, and
        # does not wait for them. An orphan that could not be killed is not looked at again.
        psutil.wait_procs(orphans, timeout=KILL_TIMEOUT_S)
        known = {*known, *(orphan.pid for orphan in orphans)}
        within_s = 0
    return commands


def _orphans(known: Collection[int]) -> list[psutil.Process]:
    started = {child.pid for child in multiprocessing.active_children()}
    children = psutil.Process().children()
    return [child for child in children if child.pid not in started and child.pid not in known]


def _command(process: psutil.Process) -> str:
    """The command and the id of a process, shortened."""
    try:
        command = printable(" ".join(process.cmdline()) or process.name())
    except psutil.Error:
        # The process has ended meanwhile.
        command = "unknown"
    if len(command) > COMMAND_LENGTH:
        command = f"{command[:COMMAND_LENGTH]}…"
    return f"{command} (pid {process.pid})"
