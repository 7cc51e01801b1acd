"""`launcher=single`: one process a trial on this machine, one trial at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch

from fastloop.environment import pss_mib
from fastloop.lifeline import tie
from fastloop.spans import now_ns, seconds_between
from fastloop.types import Invalid, JobFailed, Unsupported, option

SAMPLE_S = 0.2
PRELOADED = (
    "fastloop.config",
    "fastloop.job",
    "fastloop.datasets.",
    "fastloop.stores.",
    "fastloop.loaders.",
)
"""What the forkserver imports beforehand, as far as this process has: options with their libraries,
and what `__main__` imports, because every child runs the main module once more."""
PREFIXES = {
    Unsupported: "unsupported",
    Invalid: "invalid",
    MemoryError: "out of memory",
    torch.OutOfMemoryError: "out of memory",
}


@option
class Single:
    """`forkserver`: forked from a server that has torch imported; `spawn`: a new Python;
    `inline`: this process, for debugging."""

    isolation: Literal["forkserver", "spawn", "inline"]

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args) in a fresh process; this one blocks meanwhile. Raises JobFailed."""
        return self._call(partial(_blocked, timeout_s), function, args)[0]

    def call_observed(
        self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None
    ) -> tuple[Any, float | None]:
        """The same, and the peak PSS in MiB of that process and its children, 5 times a second."""
        return self._call(partial(_observed, timeout_s), function, args)

    def _call(
        self,
        waiting: Callable[[Connection, BaseProcess], float | None],
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> tuple[Any, float | None]:
        if self.isolation == "inline":
            return _unpacked(_done(function, args)), None
        context = _context(self.isolation)
        receiver, sender = Pipe(duplex=False)
        process = context.Process(target=_child, args=(sender, function, args), daemon=False)  # pyright: ignore[reportAttributeAccessIssue]
        process.start()
        sender.close()
        try:
            peak_mib = waiting(receiver, process)
            return _unpacked(_received(receiver, process)), peak_mib
        finally:
            _end(process)
            receiver.close()


def _context(isolation: str) -> BaseContext:
    context = multiprocessing.get_context(isolation)
    if isolation == "forkserver":
        ours = [name for name in sys.modules if name.startswith(PRELOADED)]
        context.set_forkserver_preload(["torch", "tensordict", *ours, "fastloop.forkserver"])
    return context


def _child(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Do the work and send what came of it; the terminal's Ctrl-C is the parent's to handle."""
    os.setpgid(0, 0)  # one group with its workers, so that all of them can be ended together
    tie()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sender.send(_done(function, args))
    sender.close()


def _done(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*args)
    except Exception as error:
        return False, (_reason(error), traceback.format_exc())


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    if "in DataLoader worker process" in lines[0]:
        return f"{lines[-1]} (in a DataLoader worker)"
    for kind, prefix in PREFIXES.items():
        if isinstance(error, kind):
            return f"{prefix}: {lines[0]}"
    return f"{type(error).__name__}: {lines[0]}"


def _unpacked(done: tuple[bool, Any]) -> Any:
    finished, outcome = done
    if not finished:
        raise JobFailed(*outcome)
    return outcome


def _blocked(timeout_s: float | None, receiver: Connection, process: BaseProcess) -> None:
    """Block until something came or the process ended."""
    if not wait([receiver, process.sentinel], timeout_s):
        raise _timeout(timeout_s)


def _observed(timeout_s: float | None, receiver: Connection, process: BaseProcess) -> float | None:
    """Peak PSS in MiB: as _blocked, but looking now and then; for instrumented passes only."""
    start_ns, peak_mib, ended = now_ns(), 0.0, []
    while not ended:
        peak_mib = max(peak_mib, pss_mib(process.pid or 0))
        ended = wait([receiver, process.sentinel], SAMPLE_S)
        if timeout_s is not None and seconds_between(start_ns, now_ns()) > timeout_s:
            raise _timeout(timeout_s)
    return peak_mib or None


def _timeout(timeout_s: float | None) -> JobFailed:
    return JobFailed(f"timeout: no result after {timeout_s:g} s")


def _received(receiver: Connection, process: BaseProcess) -> tuple[bool, Any]:
    if not receiver.poll():
        # It is dead; its children may still hold the pipe's other end and would keep recv waiting.
        process.join()
        _kill_group(process)
    try:
        return receiver.recv()
    except EOFError:
        process.join(timeout=5)  # the pipe closes a moment before the exit status is known
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        said = f"ChildProcessError: the trial's process ended without a result, {how}"
        return False, (said, "")


def _end(process: BaseProcess) -> None:
    """Nothing outlives its call: one that has answered ends by itself, any other and all of its
    children are killed."""
    if sys.exc_info()[0] is None:
        process.join(timeout=5)
    _kill_group(process)
    process.kill()
    process.join()
    process.close()


def _kill_group(process: BaseProcess) -> None:
    if process.pid:  # never 0, which is this process's own group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
