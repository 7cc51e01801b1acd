"""A fresh process that makes a single call, reports its outcome and is always ended, with the
processes that it leaves running."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess, _children  # pyright: ignore[reportAttributeAccessIssue]
from pathlib import Path
from typing import IO, Any

import psutil

from fastloop.core.machine import oom_kills
from fastloop.core.text import describe_exit, printable
from fastloop.core.types import Failure, FailureKind, Invalid, TimeLimit, Unsupported
from fastloop.core.user_code import worker_error_line
from fastloop.processes.environments import spawn_from
from fastloop.processes.parent_death import die_with_parent
from fastloop.processes.rank_group import RankSpec, join_group
from fastloop.processes.start_method import Isolation, start_context, start_process

KINDS = {
    Unsupported: FailureKind.UNSUPPORTED,
    Invalid: FailureKind.INVALID,
    TimeLimit: FailureKind.TIMEOUT,
}
OUT_OF_MEMORY = re.compile(
    r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|error: out of memory"
)
"""Messages of Python, torch's allocators, the system and CUDA when memory is exhausted."""
LAST_LINES = 20
"""Number of lines of a silent process's output that are shown when it fails."""
EXIT_TIMEOUT_S = 5
"""Time for a process to exit by itself after its answer."""
LAST_BYTES = 1 << 16
"""Maximum number of bytes of the log that are read at a time."""
ATTEMPTS, PAUSE_S = 10, 0.05
"""Number of times to wait for a process to write its stack, and the time of each wait."""
KILL_TIMEOUT_S = 30
"""Time for a process to exit after it was killed."""
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
"""Options of Linux's prctl() that let a process adopt orphans below it; see prctl(2)."""
COMMAND_LENGTH = 60
"""Maximum number of characters of a command that are shown."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function call for a process to make."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    number: int = 0
    """Equal for all ranks that make the call together."""
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
    failure: Failure | None = None


@dataclass(kw_only=True)
class Child:
    """A process that makes a call; it lives as long as the context `start_child`."""

    call: Call
    process: BaseProcess
    receiver: Connection
    release: Connection
    """A connection; closing it lets the process exit."""
    log: ChildLog
    oom_kills_before: int
    has_answered: bool = False
    """True when it has returned a value. It then exits by itself."""
    left_running: list[str] = field(default_factory=list)
    """Commands that it has left running, which are ended when the context ends."""

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self.process.pid or 0

    @property
    def handles(self) -> list[Any]:
        """Waitable objects, one of which becomes ready when the process has answered or ended."""
        return [self.receiver, self.process.sentinel]

    def receive_outcome(self) -> Outcome:
        """Receive the outcome of the call, once a handle is ready."""
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
        """Stack of the process, innermost call first; empty if it does not respond."""
        return self.stack_of(self.pid)

    def stack_of(self, pid: int) -> str:
        """Stack of a process that the child has forked; empty if it does not respond."""
        return self.log.stack_of(pid, self.process.sentinel)

    def _exit_failure(self) -> Failure:
        # The pipe closes shortly before the exit status is known.
        self.process.join(timeout=EXIT_TIMEOUT_S)
        code = self.process.exitcode
        if code is None:
            message = "the trial's process closed its pipe without a result but has not exited"
            return Failure(kind=FailureKind.ERROR, message=f"ChildProcessError: {message}")
        # SIGKILL alone does not tell who has sent it, but the kernel counts, for each cgroup, the
        # processes that it has killed for want of memory.
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

    environment: folder of the environment in which it runs; None: the one of this process.

    On exit, a process that has answered exits by itself; any other is killed with its children.
    Processes that it leaves running are ended too.
    """
    # A forkserver forks processes of this environment alone.
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
    # A process that has left the child's group becomes a child of this one when its parent ends.
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
            _end(process, child.has_answered)
            receiver.close()
            log.close()
            if known is not None:
                # A loader's workers may still be ending after the answer; after a failure nothing
                # is waited for.
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
    # Ctrl-C reaches every process of the terminal: the parent decides what it means for this one.
    # SIGINT was blocked from before its start until here, see start_process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    write_log(log, silent=call.rank > 0)
    outcome = run_call(call)
    # The parent may have given up waiting.
    with contextlib.suppress(BrokenPipeError, EOFError):
        sender.send(outcome)
        sender.close()
        # Raises EOFError when the parent has taken its last sample of resources, and closes its
        # end.
        release.recv()


def _failure_of(error: Exception, details: str) -> Failure:
    lines = str(error).strip().splitlines() or [""]
    for cls, kind in KINDS.items():
        if isinstance(error, cls):
            return Failure(kind=kind, message=lines[0], details=details)
    message, source = f"{type(error).__name__}: {lines[0]}", ""
    if of_worker := worker_error_line(error):
        message, source = of_worker, " (in a DataLoader worker)"
    if OUT_OF_MEMORY.search(message):
        message = message.partition(": ")[2] or message.removesuffix(": ")
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=message + source, details=details)
    return Failure(kind=FailureKind.ERROR, message=message + source, details=details)


def _end(process: BaseProcess, has_answered: bool) -> None:
    # The process could not be started.
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
    # killpg(0) would kill this process's own group.
    if process.pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _open_temporary() -> IO[bytes]:
    return tempfile.TemporaryFile()


@dataclass(kw_only=True)
class ChildLog:
    """The output of a silent process, and the stack of any process on request.

    They are written to an unlinked file, so that a kill leaves nothing behind.
    """

    file: IO[bytes] = field(default_factory=_open_temporary)
    _read_until: int = 0

    def writer(self) -> Connection:
        """A duplicate of the file's descriptor, which can be sent to another process."""
        return Connection(os.dup(self.file.fileno()), readable=False)

    def read(self) -> str:
        """Text written since the last call, at most its last LAST_BYTES bytes."""
        # file.read() would move the position in the file, which the writing process shares.
        size = os.fstat(self.file.fileno()).st_size
        start = max(self._read_until, size - LAST_BYTES)
        self._read_until = size
        return os.pread(self.file.fileno(), size - start, start).decode(errors="replace")

    def stack_of(self, pid: int, sentinel: int) -> str:
        """Stack of the process, innermost call first; empty if it does not respond.

        sentinel: handle that becomes ready when the process ends.
        """
        self.read()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        stack = ""
        for _ in range(ATTEMPTS):
            wait([sentinel], PAUSE_S)
            text = self.read()
            # faulthandler writes in pieces. The stack is complete if nothing was added since last
            # time.
            if stack and not text:
                break
            stack += text
        return stack

    def close(self) -> None:
        """Close the file, which deletes it."""
        self.file.close()


def write_log(writer: Connection, silent: bool) -> None:
    """Write the stacks of all threads of this process to the log on SIGUSR1, the main one last; if
    silent, its output as well."""
    faulthandler.register(signal.SIGUSR1, writer.fileno(), all_threads=True)
    if silent:
        for descriptor in (1, 2):
            os.dup2(writer.fileno(), descriptor)


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Let processes below this one become its children when their parent ends.

    Otherwise init would adopt them, and their origin would be lost. Only Linux can do it.
    """
    if sys.platform != "linux":
        yield
        return
    libc, before = ctypes.CDLL(None), ctypes.c_int()
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
        known, within_s = {*known, *(orphan.pid for orphan in orphans)}, 0
    return commands


def _orphans(known: Collection[int]) -> list[psutil.Process]:
    started = {child.pid for child in multiprocessing.active_children()}
    children = psutil.Process().children()
    return [child for child in children if child.pid not in started and child.pid not in known]


def _command(process: psutil.Process) -> str:
    try:
        command = printable(" ".join(process.cmdline()) or process.name())
    except psutil.Error:
        # The process has ended meanwhile.
        command = "unknown"
    if len(command) > COMMAND_LENGTH:
        command = f"{command[:COMMAND_LENGTH]}…"
    return f"{command} (pid {process.pid})"
