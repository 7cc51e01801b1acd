"""A fresh process that does one call: started quickly, ended always, its failure told."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess, _children  # pyright: ignore[reportAttributeAccessIssue]
from typing import IO, Any, Literal

from fastloop.environment import oom_kills
from fastloop.lifeline import tie
from fastloop.ranks import Seat, seated
from fastloop.types import Invalid, Unsupported

Isolation = Literal["forkserver", "spawn"]
QUIET = "ignore:resource_tracker:UserWarning"
PRELOADED = (
    "fastloop.config",
    "fastloop.job",
    "fastloop.trial",
    "fastloop.datasets.",
    "fastloop.stores.",
    "fastloop.loaders.",
    "fastloop.models.",
)
"""What the forkserver imports beforehand, as far as this process has: options with their libraries,
and what `__main__` imports, because every child runs the main module once more."""
VERDICTS = {Unsupported: "unsupported", Invalid: "invalid"}
OUT_OF_MEMORY = re.compile(
    r"MemoryError|DefaultCPUAllocator|Cannot allocate memory|error: out of memory"
)
"""In what is said where there is none left: by Python, torch's allocators, the system, CUDA."""
LAST_LINES, LAST_BYTES = 20, 1 << 16
"""So much of what a silent process has said is told when it fails."""
GONE_S = 30
"""As long may a process take to end that has been killed."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """What a process is to do."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    number: int = 0
    """Several that do the same have the same number."""
    seat: Seat | None = None
    """Which of them this one is; all but the first are silent."""

    @property
    def rank(self) -> int:
        """Its number among those that do the same."""
        return self.seat.rank if self.seat else 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it: the function's value, or why there is none."""

    value: Any = None
    reason: str = ""
    details: str = ""


@dataclass(kw_only=True)
class Child:
    """The process, while it works and until `started` is left."""

    call: Call
    process: BaseProcess
    receiver: Connection
    hold: Connection
    notes: IO[bytes]
    """What it says, if it is silent, and where it is when it is asked; a file without a name."""
    oom_kills_before: int
    read_until: int = 0
    """Of the notes, in bytes."""
    is_done: bool = False
    """It has answered, and not with a failure: it ends by itself."""

    @property
    def pid(self) -> int:
        """Its number; it leads a group of processes of that number."""
        return self.process.pid or 0

    @property
    def handles(self) -> list[Any]:
        """One of them is ready when it has answered or ended."""
        return [self.receiver, self.process.sentinel]

    def outcome(self) -> Outcome:
        """Its answer, or how it ended without one; call it when a handle is ready."""
        if not self.receiver.poll():
            # It is dead; its children may still hold the pipe's other end and keep recv waiting.
            self.process.join()
            _kill_group(self.process)
        try:
            found = self.receiver.recv()
        except (EOFError, OSError):  # nothing, or the beginning of an answer
            found = Outcome(reason=self._ending())
        if not found.reason:
            self.is_done = True
            return found
        said = "".join(self._noted().splitlines(keepends=True)[-LAST_LINES:])
        return Outcome(reason=found.reason, details=found.details + said)

    def _ending(self) -> str:
        self.process.join(timeout=5)  # the pipe closes a moment before the exit status is known
        code = self.process.exitcode
        if code is None:
            return "ChildProcessError: the trial's process says nothing more and has not ended yet"
        if code == -signal.SIGKILL and oom_kills() > self.oom_kills_before:
            return "out of memory: the kernel killed the trial's process"
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"ChildProcessError: the trial's process ended without a result, {how}"

    def stack(self) -> str:
        """What it is doing, the innermost call first; empty where it does not answer."""
        self._noted()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        found = ""
        for _ in range(10):
            wait([self.process.sentinel], 0.05)
            more = self._noted()
            if found and not more:
                break
            found += more
        return found

    def _noted(self) -> str:
        """The end of what it has noted since it was last asked."""
        # Not read(): the process writes where the file's position is, which is one for both.
        size = os.fstat(self.notes.fileno()).st_size
        start = max(self.read_until, size - LAST_BYTES)
        self.read_until = size
        return os.pread(self.notes.fileno(), size - start, start).decode(errors="replace")


@contextmanager
def started(isolation: Isolation, call: Call) -> Iterator[Child]:
    """The process, begun. Nothing of it is left in the end: one that has answered ends by itself,
    any other and all of its children are killed."""
    context = _context(isolation)
    receiver, sender = Pipe(duplex=False)
    held, hold = Pipe(duplex=False)
    notes = tempfile.TemporaryFile()  # noqa: SIM115
    written = Connection(os.dup(notes.fileno()), readable=False)  # which travels to a process
    work = (sender, held, written, call)
    process = context.Process(target=_main, args=work, daemon=False)  # pyright: ignore[reportAttributeAccessIssue]
    child = Child(
        call=call,
        process=process,
        receiver=receiver,
        hold=hold,
        notes=notes,
        oom_kills_before=oom_kills(),
    )
    try:  # a signal may come at any moment from here on
        _start(process, isolation)
        sender.close()
        held.close()
        written.close()
        yield child
    finally:
        hold.close()
        _end(process, child.is_done)
        receiver.close()
        notes.close()


def _start(process: BaseProcess, isolation: Isolation) -> None:
    """Ctrl-C reaches all of the terminal's processes: what starts here, and takes seconds to import
    what it needs, inherits that it waits, until _main() ignores it."""
    resource_tracker.ensure_running()  # or it would let signals through once it has started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if isolation == "forkserver":
            forkserver.ensure_running()
        else:
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if isolation == "forkserver":
        process.start()  # which waits for the server's imports


def done(call: Call) -> Outcome:
    """What comes of it in this process."""
    try:
        with contextlib.nullcontext() if call.seat is None else seated(call.seat):
            return Outcome(value=call.function(*call.args))
    except Exception as error:
        return Outcome(reason=_reason(error), details=traceback.format_exc())


def _context(isolation: Isolation) -> BaseContext:
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


def _main(sender: Connection, held: Connection, notes: Connection, call: Call) -> None:
    """Do the work and send what came of it; the terminal's Ctrl-C is the parent's to handle."""
    os.setpgid(0, 0)  # one group with its workers, so that all of them can be ended together
    tie()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _take_notes(notes, silent=call.rank > 0)
    outcome = done(call)
    with contextlib.suppress(BrokenPipeError, EOFError):  # the parent may have given up
        sender.send(outcome)
        sender.close()
        held.recv()  # until the parent has looked once more and closes its end


def _take_notes(notes: Connection, silent: bool) -> None:
    """Write where this process is whenever SIGUSR1 comes, and, if silent, all that it says."""
    faulthandler.register(signal.SIGUSR1, notes.fileno(), all_threads=False)
    if silent:
        for descriptor in (1, 2):
            os.dup2(notes.fileno(), descriptor)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    for kind, verdict in VERDICTS.items():
        if isinstance(error, kind):
            return f"{verdict}: {lines[0]}"
    said, where = f"{type(error).__name__}: {lines[0]}", ""
    if "in DataLoader worker process" in lines[0]:
        said = re.sub(r"^(?:\w+\.)+(\w+(?::|$))", r"\1", lines[-1])  # BadData:, as elsewhere
        where = " (in a DataLoader worker)"
    if OUT_OF_MEMORY.search(said):
        said = f"out of memory: {said.partition(': ')[2] or said.removesuffix(': ')}"
    return said + where


def _end(process: BaseProcess, is_done: bool) -> None:
    if process.pid is None:  # it has not begun
        return
    if is_done:
        process.join(timeout=5)
    _kill_group(process)
    process.kill()
    process.join(timeout=GONE_S)
    if process.exitcode is None:  # the kernel holds it: for a device's driver, or a file system
        print(f"process {process.pid} can't be ended and is left behind", file=sys.stderr)
        _children.discard(process)  # or the end of this process would wait for it
        return
    process.close()


def _kill_group(process: BaseProcess) -> None:
    if process.pid:  # never 0, which is this process's own group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
