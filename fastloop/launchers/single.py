"""`launcher=single`: one process a trial on this machine, one trial at a time."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import torch
from pydantic import PositiveFloat

from fastloop.environment import pss_mib
from fastloop.types import BadData, Invalid, JobFailed, Unsupported, option

SAMPLE_S = 0.05
PRELOADED = (
    "fastloop.config",
    "fastloop.job",
    "fastloop.datasets.",
    "fastloop.stores.",
    "fastloop.loaders.",
)
"""What the forkserver imports beforehand, as far as this process has: options with their
libraries, and
what `__main__` imports, because every child runs the main module once more."""
PREFIXES = {
    Unsupported: "unsupported",
    Invalid: "invalid",
    BadData: "bad data",
    MemoryError: "out of memory",
    torch.OutOfMemoryError: "out of memory",
}


@option
class Single:
    """`forkserver`: forked from a server that has torch and fastloop imported; `spawn`: a new
    Python;
    `inline`: this process, for debugging."""

    isolation: Literal["forkserver", "spawn", "inline"]
    timeout_s: PositiveFloat

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args) in a fresh process; this one blocks meanwhile. Raises JobFailed."""
        return self._call(None, function, *args)[0]

    def call_observed(self, function: Callable[..., Any], *args: Any) -> tuple[Any, float | None]:
        """The same, and the peak PSS in MiB of that process and its children, looked at 20 times a
        s."""
        return self._call(SAMPLE_S, function, *args)

    def _call(
        self, sample_s: float | None, function: Callable[..., Any], *args: Any
    ) -> tuple[Any, float | None]:
        if self.isolation == "inline":
            return _unpacked(_done(function, args)), None
        context = _context(self.isolation)
        receiver, sender = Pipe(duplex=False)
        process = context.Process(target=_child, args=(sender, function, args), daemon=False)  # pyright: ignore[reportAttributeAccessIssue]
        process.start()
        sender.close()
        try:
            peak_mib = _wait(receiver, process, self.timeout_s, sample_s)
            return _unpacked(_received(receiver, process)), peak_mib
        finally:
            _end(process)
            receiver.close()


def _context(isolation: str) -> BaseContext:
    context = multiprocessing.get_context(isolation)
    if isolation == "forkserver":
        ours = [name for name in sys.modules if name.startswith(PRELOADED)]
        context.set_forkserver_preload(["torch", "tensordict", *ours, "fastloop.lifeline"])
    return context


def _child(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Do the work and send what came of it; the terminal's Ctrl-C is the parent's to handle."""
    from fastloop import lifeline

    lifeline.tie()
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
    lines = str(error).strip().splitlines()
    said = lines[0] if lines else ""
    for kind, prefix in PREFIXES.items():
        if isinstance(error, kind):
            return f"{prefix}: {said}"
    return f"{type(error).__name__}: {said}"


def _unpacked(done: tuple[bool, Any]) -> Any:
    finished, outcome = done
    if not finished:
        raise JobFailed(*outcome)
    return outcome


def _wait(
    receiver: Connection, process: BaseProcess, timeout_s: float, sample_s: float | None
) -> float | None:
    """Block until something came, the process ended or the time is over; the peak PSS on the
    way."""
    if sample_s is None:
        if not wait([receiver, process.sentinel], timeout_s):
            raise JobFailed(f"timeout: no result after {timeout_s:g} s")
        return None
    peak_mib = 0.0
    for _ in range(int(timeout_s / sample_s) + 1):
        peak_mib = max(peak_mib, pss_mib(process.pid or 0))
        if wait([receiver, process.sentinel], sample_s):
            return peak_mib or None
    raise JobFailed(f"timeout: no result after {timeout_s:g} s")


def _received(receiver: Connection, process: BaseProcess) -> tuple[bool, Any]:
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return False, (f"ChildProcessError: the trial's process ended without a result, {how}", "")


def _end(process: BaseProcess) -> None:
    """No process outlives its call: one that has sent its result ends by itself, any other is
    ended."""
    process.join(timeout=5)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()
