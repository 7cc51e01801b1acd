"""Find the lines of code that a running trial's process, threads and workers execute.

The command shows them if a trial does not end, or does no work.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from fastloop.processes.child_process import Child

NO_STACK = "did not report its stack"
FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>\S+)$', re.M)
"""A call in a stack that faulthandler has written."""
THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.M)
"""The place in front of each thread's stack in faulthandler's text."""
CAUGHT_SIGNALS = re.compile(rb"^SigCgt:\s*([0-9a-f]+)$", re.M)
"""The line of /proc/<pid>/status with the mask of caught signals."""
WAITING_MODULES = re.compile(r"/(selectors|threading|queue|multiprocessing/\w+)\.py$")
"""Modules in which a process waits for another one. The call that leads into such a module shows
the reason for the wait."""
MOST_WORKERS = 8
"""Maximum number of workers, and of threads, that are described."""


def locate_processes(child: Child) -> tuple[str, str]:
    """Locate the child, its threads and its workers in their code; returns their positions in a few
    words, and their stacks."""
    return locate_by_stacks(
        child.pid, lambda pid: child.stack_of(pid) if _writes_its_stack(pid) else ""
    )


def locate_by_stacks(pid: int, stack_of: Callable[[int], str]) -> tuple[str, str]:
    """Locate the process, its threads and its workers in their code; returns their positions in a
    few words, and their stacks.

    stack_of: returns the stacks of a process's threads, the main one's last; empty if it writes
    none.
    """
    own = stack_of(pid)
    *threads, main = _threads(own)
    words, stacks = [_describe(main), *_describe_threads(threads)], [own]
    for name, process in workers_of(pid):
        stack = stack_of(process.pid)
        state = _describe_worker(process, stack)
        words.append(f"{name} {state}")
        stacks.append(f"{name}, {state}:\n{stack}" if stack else f"{name}: {state}\n")
    return ", ".join(words), "\n".join(filter(None, stacks))


def _threads(stack: str) -> list[str]:
    """The stack of each thread, the main one's last, as faulthandler writes them."""
    return THREAD.split(stack)


def _describe_threads(stacks: list[str]) -> list[str]:
    """Positions of the threads that don't just wait for another one."""
    frames = [frame for stack in stacks if (frame := _innermost(stack)) and not _waits(frame)]
    return [
        f"thread {number} is in {frame['function']} ({_place(frame)})"
        for number, frame in enumerate(frames[:MOST_WORKERS], 1)
    ]


def workers_of(pid: int) -> list[tuple[str, psutil.Process]]:
    """The processes that the process has started, with their names, oldest first."""
    with contextlib.suppress(psutil.Error):
        own = psutil.Process(pid)
        found = [each for started in own.children() for each in _without_helpers(started, own)]
        return [
            (f"worker {number} (pid {process.pid})", process)
            for number, process in enumerate(found[:MOST_WORKERS])
        ]
    return []


def _without_helpers(process: psutil.Process, parent: psutil.Process) -> list[psutil.Process]:
    """The workers among a process and its children: the process itself, or a fork server's
    children.

    The list is empty for the other helpers of multiprocessing.
    """
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        text = " ".join(command)
        # A fork server and multiprocessing's resource tracker are children too, but not workers.
        if command == parent.cmdline():  # forked
            return [process]
        if "multiprocessing.forkserver" in text:
            return process.children()
        return [] if "multiprocessing.resource_tracker" in text else [process]
    return []


def _writes_its_stack(pid: int) -> bool:
    """True if SIGUSR1 makes the process write its stack, as in a forked worker. The signal would
    end any other process."""
    with contextlib.suppress(OSError):
        # The mask of caught signals in /proc/<pid>/status has bit n - 1 for signal n (man 5 proc).
        # The file is read as bytes, because the process's name in it may not be valid text.
        match = CAUGHT_SIGNALS.search(Path(f"/proc/{pid}/status").read_bytes())
        return bool(match and int(match[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


def _describe(stack: str) -> str:
    """The position of a process's main thread in a few words."""
    frame = _innermost(stack)
    if frame is None:
        return NO_STACK
    if "dataloader.py" in frame["path"] and "in __next__" in stack:
        return f"waits in next() of a DataLoader ({_place(frame)})"
    return f"in {frame['function']} ({_place(frame)})"


def _describe_worker(process: psutil.Process, stack: str) -> str:
    """The position of a worker in a few words."""
    frame = _innermost(_threads(stack)[-1])
    if frame is None:
        with contextlib.suppress(psutil.Error):
            status = process.status()
            return "has ended" if status == psutil.STATUS_ZOMBIE else f"is {status}, {NO_STACK}"
        return "has ended"
    if frame["function"] == "_worker_loop":
        return "waits for work"
    return f"is in {frame['function']} ({_place(frame)})"


def _innermost(stack: str) -> re.Match[str] | None:
    """The innermost call outside of WAITING_MODULES, or else the innermost of all; None if the
    stack is empty."""
    frames = list(FRAME.finditer(stack))
    found = (frame for frame in frames if not _waits(frame))
    return next(found, frames[0] if frames else None)


def _waits(frame: re.Match[str]) -> bool:
    return bool(WAITING_MODULES.search(frame["path"]))


def _place(frame: re.Match[str]) -> str:
    return f"{Path(frame['path']).name}:{frame['line']}"
