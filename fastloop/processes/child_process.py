"""Make one function call in a fresh child process, and receive its value or its failure.

`start_child` starts the process. It always ends the process, and the processes that the call has
left running. Every trial of a job runs in such a child, except with isolation=inline.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess, _children  # pyright: ignore[reportAttributeAccessIssue]
from pathlib import Path
from typing import Any

from fastloop.core.exit_status import describe_exit
from fastloop.core.machine_counters import oom_kills
from fastloop.core.text import first_line
from fastloop.core.types import Failure, FailureKind, Invalid, TimeLimit, Unsupported
from fastloop.core.user_code import worker_error_line
from fastloop.processes.child_log import ChildLog, write_log
from fastloop.processes.environments import spawn_from
from fastloop.processes.orphans import KILL_TIMEOUT_S, adopt_orphans, child_pids, end_orphans
from fastloop.processes.parent_death import die_with_parent
from fastloop.processes.rank_group import RankSpec, join_group
from fastloop.processes.start_method import Isolation, start_context, start_process

KINDS = {
    Unsupported: FailureKind.UNSUPPORTED,
    Invalid: FailureKind.INVALID,
    TimeLimit: FailureKind.TIMEOUT,
}
"""Class of an error -> the kind of failure; any other error is of kind ERROR or OUT_OF_MEMORY."""
OUT_OF_MEMORY = re.compile(
    r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|error: out of memory"
)
"""Messages of Python, torch's allocators, the system and CUDA when memory is exhausted."""
LAST_LINES = 20
"""Number of lines of a silent process's output that are shown when it fails."""
EXIT_TIMEOUT_S = 5
"""Seconds for a process to exit by itself, after its answer or after its pipe was closed."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function call for a process to make."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    number: int = 0
    """Number of the call, equal for all ranks that make it together."""
    spec: RankSpec | None = None
    """Rank of the process in its group; None: no group. Only rank 0 prints its output."""

    @property
    def rank(self) -> int:
        """Rank of the process; 0 without a group."""
        return self.spec.rank if self.spec else 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The value that a call returned, or its failure."""

    value: Any = None
    """The value; None after a failure."""
    failure: Failure | None = None
    """The failure; None: the call has returned a value."""


@dataclass(kw_only=True)
class Child:
    """A process that makes a call, and lives as long as the context `start_child`."""

    call: Call
    process: BaseProcess
    receiver: Connection
    """The connection that receives the outcome."""
    release: Connection
    """A connection; closing it lets the process exit."""
    log: ChildLog
    """The output of the process if it is silent (a rank other than 0), and stacks on request."""
    oom_kills_before: int
    """Number of processes that the kernel had killed for lack of memory before this one started."""
    has_answered: bool = False
    """True when the process has returned a value, after which it exits by itself."""
    left_running: list[str] = field(default_factory=list)
    """Commands of the processes that the call has left running; complete once the context has
    ended, which ends these processes."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self.process.pid or 0

    @property
    def handles(self) -> list[Any]:
        """Waitable objects, one of which becomes ready when the process has answered or ended."""
        return [self.receiver, self.process.sentinel]

    def receive_outcome(self) -> Outcome:
        """Receive the outcome of the call, once one of `handles` is ready."""
        if not self.receiver.poll():
            # The process is dead, but its children may hold the pipe open and keep recv waiting.
            self.process.join()
            _kill_group(self.process)
        try:
            outcome = self.receiver.recv()
        except (EOFError, OSError):
            # The process has died without an answer, or with a part of one.
            outcome = Outcome(failure=self._exit_failure())
        if outcome.failure is None:
            self.has_answered = True
            return outcome
        output = "".join(self.log.read().splitlines(keepends=True)[-LAST_LINES:])
        return Outcome(failure=replace(outcome.failure, details=outcome.failure.details + output))

    def stack(self) -> str:
        """Stacks of the process's threads, the main one's last; empty if it does not respond.

        Each stack begins with the innermost call.
        """
        return self.stack_of(self.pid)

    def stack_of(self, pid: int) -> str:
        """Stacks of the child, or of a process that it has started, as `stack` returns them."""
        return self.log.stack_of(pid, self.process.sentinel)

    def _exit_failure(self) -> Failure:
        """The failure of a process that has ended, or closed its pipe, without an answer."""
        # The pipe closes shortly before the exit status is known.
        self.process.join(timeout=EXIT_TIMEOUT_S)
        code = self.process.exitcode
        if code is None:
            message = "the trial's process closed its pipe without a result but has not exited"
            return Failure(kind=FailureKind.ERROR, message=f"ChildProcessError: {message}")
        # SIGKILL does not show its sender. But the kernel counts the processes that it has killed
        # for lack of memory, all those of the machine together.
        if code == -signal.SIGKILL and oom_kills() > self.oom_kills_before:
            message = "the kernel killed the trial's process"
            return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message)
        ended = f"the trial's process ended without a result, {describe_exit(code)}"
        return Failure(kind=FailureKind.ERROR, message=f"ChildProcessError: {ended}")


@contextmanager
def start_child(
    isolation: Isolation, call: Call, environment: Path | None = None
) -> Iterator[Child]:
    """Start a process that makes the call.

    environment: folder of the environment in which the process runs; None: this process's own.

    When the context ends, a process that has returned a value exits by itself. Any other process is
    killed with its children. Processes that the call has left running are ended too.
    """
    # A forkserver can fork processes of this process's environment only.
    isolation = "spawn" if environment else isolation
    context = start_context(isolation)
    receiver, sender = Pipe(duplex=False)
    release_receiver, release = Pipe(duplex=False)
    log = ChildLog()
    writer = log.writer()
    arguments = (sender, release_receiver, writer, call)
    process = context.Process(target=_main, args=arguments, daemon=False)  # pyright: ignore[reportAttributeAccessIssue]
    child = Child(
        call=call,
        process=process,
        receiver=receiver,
        release=release,
        log=log,
        oom_kills_before=oom_kills(),
    )
    known: set[int] | None = None
    # The call may start processes that leave the child's process group. When the parent of such a
    # process ends, this process adopts it, and finds it among its own children.
    with adopt_orphans():
        # A signal may come at any moment from here on: `finally` ends all that has begun.
        try:
            with spawn_from(environment) if environment else contextlib.nullcontext():
                start_process(process, isolation)
            known = child_pids()
            sender.close()
            release_receiver.close()
            writer.close()
            yield child
        finally:
            release.close()
            _end_group(process, child.has_answered)
            receiver.close()
            log.close()
            if known is not None:
                # After an answer, the workers of a loader may still be ending, so they get time.
                # After a failure they get none.
                grace_s = EXIT_TIMEOUT_S if child.has_answered else 0
                child.left_running += end_orphans(known, grace_s)


def run_call(call: Call) -> Outcome:
    """Make the call in this process and return its outcome."""
    try:
        with contextlib.nullcontext() if call.spec is None else join_group(call.spec):
            return Outcome(value=call.function(*call.args))
    except Exception as error:
        return Outcome(failure=_failure_of(error, traceback.format_exc()))


def _main(sender: Connection, release: Connection, log: Connection, call: Call) -> None:
    """Make the call and send its outcome; Ctrl-C in the terminal is left to the parent."""
    # This process leads a group with its workers, so that all of them can be killed together.
    os.setpgid(0, 0)
    die_with_parent()
    # Ctrl-C reaches every process of the terminal, but the parent decides whether this one ends.
    # SIGINT was blocked from before its start until here, see start_method.py.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    write_log(log, silent=call.rank > 0)
    outcome = run_call(call)
    # The parent may have given up waiting.
    with contextlib.suppress(BrokenPipeError, EOFError):
        sender.send(outcome)
        sender.close()
        # This process waits until the parent has taken its last sample of resources. The parent
        # then closes its end of the connection, which raises EOFError here.
        release.recv()


def _failure_of(error: Exception, details: str) -> Failure:
    """The failure of a call that raised this error. details: its traceback."""
    reason = first_line(error)
    for cls, kind in KINDS.items():
        if isinstance(error, cls):
            return Failure(kind=kind, message=reason, details=details)
    message, source = f"{type(error).__name__}: {reason}", ""
    if of_worker := worker_error_line(error):
        message, source = of_worker, " (in a DataLoader worker)"
    if OUT_OF_MEMORY.search(message):
        message = message.partition(": ")[2] or message.removesuffix(": ")
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message + source, details=details)
    return Failure(kind=FailureKind.ERROR, message=message + source, details=details)


def _end_group(process: BaseProcess, has_answered: bool) -> None:
    """Wait for the process if it has answered, then kill it and its group."""
    # A process that could not be started has no id.
    if process.pid is None:
        return
    if has_answered:
        process.join(timeout=EXIT_TIMEOUT_S)
    # The group is killed even after an orderly exit, because workers may be left in it.
    _kill_group(process)
    process.kill()
    process.join(timeout=KILL_TIMEOUT_S)
    # A process that is blocked in the kernel, by a device driver or a file system, can't be killed.
    if process.exitcode is None:
        print(f"process {process.pid} can't be killed and is left running", file=sys.stderr)
        # Otherwise this process would wait for it at exit.
        _children.discard(process)
        return
    process.close()


def _kill_group(process: BaseProcess) -> None:
    """Kill all processes of the group that the process leads."""
    # killpg(0) would kill this process's own group.
    if process.pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
