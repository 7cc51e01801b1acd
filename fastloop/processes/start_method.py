"""Start child processes: fork them from a server that has imported most modules, or spawn them."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from threading import Event
from typing import Literal

from fastloop.core.types import Failure, FailureKind, JobFailed, SignalExit
from fastloop.processes.parent_death import FORKSERVER_OWNER
from fastloop.processes.signals import defer_signals, exit_if_signalled

Isolation = Literal["forkserver", "spawn"]
RESOURCE_TRACKER_FILTER = "ignore:resource_tracker:UserWarning"
"""Filter of warnings for multiprocessing's resource tracker."""
LIMITS_HINT = "see ulimit -u, the cgroup's pids.max, and free memory"
"""Limits that may keep the system from starting a process."""
SERVER_IS_READY = Event()
"""Set when the forkserver has started a process."""
TIE_MODULE = "fastloop.processes.forkserver_tie"
"""The module that the forkserver imports first, and nothing else imports."""
HOOK_MODULE = "fastloop.processes.forkserver_hook"
"""The module that the forkserver imports last, and nothing else imports."""
BENCHMARKS = "fastloop.options.benchmark."
"""Prefix of the modules of benchmarks."""
MODEL_MODULE = f"{BENCHMARKS}_model"
"""Module that a process imports if a job has a model."""
PRELOADED = (
    "fastloop.config.",
    "fastloop.explain.",
    "fastloop.trial.",
    "fastloop.options.dataset.",
    "fastloop.options.store.",
    "fastloop.options.loader.",
    "fastloop.options.model.",
)
"""Prefixes of the modules that the forkserver imports in advance if this process has imported them:
options with their libraries, and the imports of `__main__`, which every child runs once more."""


def start_context(isolation: Isolation) -> BaseContext:
    """multiprocessing's context for that start method, with the forkserver's imports set."""
    _silence_resource_tracker()
    context = multiprocessing.get_context(isolation)
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        # A child does not know the start method that joblib has registered.
        multiprocessing.set_start_method(isolation, force=True)
    if isolation == "forkserver":
        modules = [name for name in sys.modules if name.startswith(PRELOADED)]
        # Importing tensordict takes as long as importing torch, and most jobs do not need it.
        libraries = [name for name in ("torch", "tensordict") if name in sys.modules]
        # The first optimizer of a process imports this module, which takes seconds.
        if MODEL_MODULE in sys.modules:
            libraries.append("torch._dynamo")
        _set_preloaded(context, [*libraries, *modules])
    return context


def _set_preloaded(context: BaseContext, modules: list[str]) -> None:
    """Let the forkserver import these modules, between TIE_MODULE and HOOK_MODULE."""
    os.environ[FORKSERVER_OWNER] = str(os.getpid())
    context.set_forkserver_preload([TIE_MODULE, *modules, HOOK_MODULE])


def _runs_model(module: str) -> bool:
    """True for the module of a benchmark with a model: all but traversal."""
    return module.startswith(BENCHMARKS) and not module.endswith(".traversal")


def _silence_resource_tracker() -> None:
    # The resources of a killed trial are cleaned up when the command ends: only the warning about
    # them is left out.
    if RESOURCE_TRACKER_FILTER not in sys.warnoptions:
        sys.warnoptions.append(RESOURCE_TRACKER_FILTER)


def start_server_early(modules: Sequence[str]) -> None:
    """Start the forkserver while this process still imports its own modules. The server imports
    torch, and the modules among `modules` that begin with a prefix of PRELOADED.

    Does nothing if this process has imported torch already, because little time can be gained then,
    or if the system has no forkserver. If this process ends before it has started a child, it kills
    the server.
    """
    if "torch" in sys.modules or "forkserver" not in multiprocessing.get_all_start_methods():
        return
    _silence_resource_tracker()
    libraries = ["torch", *(["torch._dynamo"] if any(map(_runs_model, modules)) else [])]
    # Modules of the store and the placement that use tensordict.
    if any(name.endswith(".tensordict") for name in modules):
        libraries.append("tensordict")
    context = multiprocessing.get_context("forkserver")
    preloaded = [name for name in modules if name.startswith(PRELOADED)]
    _set_preloaded(context, [*libraries, *preloaded])
    with _without_interrupts():
        forkserver.ensure_running()
    atexit.register(_kill_unused_server)


def start_process(process: BaseProcess, isolation: Isolation) -> None:
    """Start the process; raises JobFailed if the system can't start another process."""
    try:
        _start(process, isolation)
    except (EOFError, OSError) as error:
        if isolation == "forkserver":
            # The server has ended: the next start must start another one.
            SERVER_IS_READY.clear()
            forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]
        cause = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        message = f"ChildProcessError: the system can't start another process{cause}: {LIMITS_HINT}"
        raise JobFailed(Failure(kind=FailureKind.ERROR, message=message)) from None


def _start(process: BaseProcess, isolation: Isolation) -> None:
    """Start the process with SIGINT blocked, until it ignores SIGINT by itself.

    Ctrl-C reaches all processes of the terminal, including those that still import modules. Signals
    to this process are handled only once the new process has its arguments: without them it would
    print a traceback.
    """
    exit_if_signalled()
    with _without_interrupts():
        if isolation == "forkserver":
            forkserver.ensure_running()
        else:
            with defer_signals():
                process.start()
    if isolation == "forkserver":
        # The first start waits for the server's imports, which take seconds: a signal may end it.
        with defer_signals() if SERVER_IS_READY.is_set() else _kill_server_on_exit():
            process.start()
        SERVER_IS_READY.set()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT, also in the processes that are started in this context."""
    # The resource tracker is started before, because starting it inside would unblock SIGINT.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _kill_unused_server() -> None:
    if not SERVER_IS_READY.is_set():
        _kill_server()


def _kill_server() -> None:
    if pid := forkserver._forkserver._forkserver_pid:  # pyright: ignore[reportAttributeAccessIssue]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _kill_server_on_exit() -> Iterator[None]:
    """Kill the forkserver if a signal ends this process. The server would import for seconds."""
    try:
        yield
    except SignalExit:
        _kill_server()
        raise
