"""`launcher=single`: one process a trial on this machine, one trial at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
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

from fastloop.environment import oom_kills
from fastloop.lifeline import tie
from fastloop.resources import Resources, Usage, sample
from fastloop.spans import cpu_ns, now_ns, seconds_between
from fastloop.types import Invalid, JobFailed, Unsupported, option

SAMPLE_S = 0.2
"""Looks at an observed process are at least so far apart."""
SAMPLER_SHARE = 0.01
SAMPLER_CREDIT_S = 0.2
"""Looking takes no more CPU time than that share of one core and this once, so that a short pass is
looked at often and a long one costs nothing: a look takes 10 ms a process, see
experiments/sampler.md."""
QUIET = "ignore:resource_tracker:UserWarning"
PRELOADED = (
    "fastloop.config",
    "fastloop.job",
    "fastloop.trial",
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
    ) -> tuple[Any, Resources | None]:
        """The same, and what that process and its children took, from its start to its answer."""
        return self._call(partial(_observed, timeout_s, Usage()), function, args)

    def _call(
        self,
        waiting: Callable[[Connection, BaseProcess], Resources | None],
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> tuple[Any, Resources | None]:
        if self.isolation == "inline":
            return _unpacked(_done(function, args)), None
        context = _context(self.isolation)
        receiver, sender = Pipe(duplex=False)
        held, hold = Pipe(duplex=False)
        work = (sender, held, function, args)
        process = context.Process(target=_child, args=work, daemon=False)  # pyright: ignore[reportAttributeAccessIssue]
        oom_kills_before = oom_kills()
        try:  # a signal may come at any moment from here on
            process.start()
            sender.close()
            held.close()
            resources = waiting(receiver, process)
            hold.close()
            done = _received(receiver, process, oom_kills_before)
        finally:
            hold.close()
            _end(process)
            receiver.close()
        return _unpacked(done), resources


def _context(isolation: str) -> BaseContext:
    # What a killed trial leaves is cleaned up when the command ends; only the warning is left out.
    if QUIET not in sys.warnoptions:
        sys.warnoptions.append(QUIET)
    context = multiprocessing.get_context(isolation)
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method(
            isolation, force=True
        )  # joblib's own is unknown to a child
    if isolation == "forkserver":
        ours = [name for name in sys.modules if name.startswith(PRELOADED)]
        # tensordict takes as long as torch, and most jobs have none of it
        libraries = [name for name in ("torch", "tensordict") if name in sys.modules]
        context.set_forkserver_preload([*libraries, *ours, "fastloop.forkserver"])
    return context


def _child(
    sender: Connection, held: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Do the work and send what came of it; the terminal's Ctrl-C is the parent's to handle."""
    os.setpgid(0, 0)  # one group with its workers, so that all of them can be ended together
    tie()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    done = _done(function, args)
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent may have given up
        sender.send(done)
        sender.close()
        held.recv()  # until the parent has looked once more and closes its end


def _done(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, function(*args)
    except Exception as error:
        return False, (_reason(error), traceback.format_exc())


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    if "in DataLoader worker process" in lines[0]:
        said = re.sub(r"^(?:\w+\.)+(\w+:)", r"\1", lines[-1])  # BadData:, as it is elsewhere
        return f"{said} (in a DataLoader worker)"
    if "not enough memory" in lines[0]:  # torch's CPU allocator raises a RuntimeError
        return f"out of memory: {lines[0]}"
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


def _observed(
    timeout_s: float | None, usage: Usage, receiver: Connection, process: BaseProcess
) -> Resources | None:
    """What it took: as _blocked, but looking now and then; for instrumented passes only."""
    start_ns, spent_s, ended = now_ns(), 0.0, []
    while not ended:
        spent_s += _look(usage, process)
        passed_s = seconds_between(start_ns, now_ns())
        if timeout_s is not None and passed_s > timeout_s:
            raise _timeout(timeout_s)
        pause_s = max(SAMPLE_S, (spent_s - SAMPLER_CREDIT_S) / SAMPLER_SHARE - passed_s)
        left_s = pause_s if timeout_s is None else timeout_s - passed_s + 1e-3
        ended = wait([receiver, process.sentinel], min(pause_s, left_s))
    _look(usage, process)  # it has answered and is held: the counters' last values
    return usage.resources(seconds_between(start_ns, now_ns()))


def _look(usage: Usage, process: BaseProcess) -> float:
    """CPU seconds that the look took."""
    before_ns = cpu_ns()
    usage.add(sample(process.pid or 0))
    return seconds_between(before_ns, cpu_ns())


def _timeout(timeout_s: float | None) -> JobFailed:
    return JobFailed(f"timeout: no result after {timeout_s:g} s")


def _received(
    receiver: Connection, process: BaseProcess, oom_kills_before: int
) -> tuple[bool, Any]:
    if not receiver.poll():
        # It is dead; its children may still hold the pipe's other end and would keep recv waiting.
        process.join()
        _kill_group(process)
    try:
        return receiver.recv()
    except (EOFError, OSError):  # nothing, or the beginning of an answer
        process.join(timeout=5)  # the pipe closes a moment before the exit status is known
        code = process.exitcode or 0
        if code == -signal.SIGKILL and oom_kills() > oom_kills_before:
            return False, ("out of memory: the kernel killed the trial's process", "")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        said = f"ChildProcessError: the trial's process ended without a result, {how}"
        return False, (said, "")


def _end(process: BaseProcess) -> None:
    """Nothing outlives its call: one that has answered ends by itself, any other and all of its
    children are killed."""
    if process.pid is None:  # it has not begun
        return
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
