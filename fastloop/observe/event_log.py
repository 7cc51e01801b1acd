"""A log to which any number of processes write the events of a timeline.

Each thread writes to its own file, which has records of one size and is mapped into memory. An
event is in the file as soon as it is added, without a system call, and stays there however its
process ends. Workers often end by a signal, while they wait for work.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import ALLOCATIONGRANULARITY, mmap
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from threading import RLock, current_thread, get_ident, local, main_thread
from typing import Any

from fastloop.core.current_batch import UNKNOWN, CurrentBatch, current_batch
from fastloop.core.parts import Part
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind

MOST_EVENTS = 100_000
"""Maximum number of events of a thread, of 48 bytes each; later ones are not recorded."""
SUFFIX, FACTS = ".events", ".facts"
"""Endings of the names of files: with a thread's events, and with facts about a process."""
_PARTS = tuple(Part)
_NUMBERS = {part: number for number, part in enumerate(_PARTS)}
RECORD = Struct("6q")
"""Part, start, batch, pass, CPU time and stop of an event, each an int64. The stop is written
last: a record with a stop of zero holds no event, or one that a kill has cut off."""
# Bound once: these are used for every event.
_pack_into, RECORD_BYTES = RECORD.pack_into, RECORD.size
# A piece of a file can be mapped only if it begins at a multiple of the granularity, and no record
# may lie in two pieces. So the size of each piece is a multiple of both sizes.
LEAST_BYTES = math.lcm(RECORD_BYTES, ALLOCATIONGRANULARITY)
MOST_BYTES = 16 * LEAST_BYTES
"""A full file doubles, but grows by at least LEAST_BYTES and at most MOST_BYTES. It is small at
first, because most processes record little."""


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of work or of waiting in an epoch, in one lane (such as a thread) of one process."""

    process_id: int
    lane: LaneKey
    """The lane that the event belongs to. In the lane of a queue, each event is a finished batch
    that waits for the loop."""
    part: Part
    start_ns: int
    """The start by the clock of core/spans.py, which all processes of a machine share."""
    stop_ns: int
    batch: int
    """Number of the batch in the pass, from 0 on; or UNKNOWN."""
    pass_number: int = UNKNOWN
    """Number of the pass, an iteration over the loader, counted in the process of the event; or
    UNKNOWN."""
    cpu_ns: int = UNKNOWN
    """CPU time that the process used during the event; or UNKNOWN."""


def _map_more(path: Path) -> mmap:
    """Append empty records to a file and map them into memory. A missing file is made.

    Raises OSError if the disk is full.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        start = os.fstat(file).st_size
        size = min(max(start, LEAST_BYTES), MOST_BYTES) // LEAST_BYTES * LEAST_BYTES
        # The zeros are written because a file that is only made longer gets its blocks when its
        # pages are written to. On a full disk that raises SIGBUS, which no code here could catch.
        if os.write(file, bytes(size)) < size:
            # After a piece that is too short, later pieces would begin at places that can't be
            # mapped.
            os.ftruncate(file, start)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return mmap(file, size, offset=start)
    finally:
        os.close(file)


def _read_records(path: Path, offset: int = 0) -> Iterator[tuple[int, ...]]:
    """The finished records of a file from the offset on, in their order."""
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read()
    # Another process may be in the middle of making the file longer.
    whole = content[: len(content) // RECORD_BYTES * RECORD_BYTES]
    return (record for record in RECORD.iter_unpack(whole) if record[-1])


@dataclass
class ThreadLog:
    """The log of one thread, a file of events."""

    path: Path
    most_events: int
    """Maximum number of events; 0 after a disk was full."""
    is_lenient: bool = False
    """True: a full disk ends the log, and raises no error."""
    current: CurrentBatch = field(default_factory=current_batch)
    """The batch that this thread is making."""
    arrived: int = 0
    """Number of the batch that the loop has, or waits for."""
    count: int = 0
    """Number of events so far."""
    records: mmap | bytearray = field(default_factory=bytearray)
    """The last piece of the file, mapped into memory; empty before the first event."""
    num_bytes: int = 0
    """Length of `records`."""
    place: int = 0
    """Offset of the next event in `records`, in bytes."""

    @property
    def is_detailed(self) -> bool:
        """True while single samples are recorded, and not only batches."""
        # The other half of the log is kept for events of batches, which are far fewer. So a long
        # epoch has no details towards its end, but its end is recorded.
        return self.count < self.most_events // 2

    def add(
        self,
        part: Part,
        start_ns: int,
        stop_ns: int,
        batch: int | None = None,
        pass_number: int | None = None,
        cpu_ns: int = UNKNOWN,
    ) -> None:
        """Record an event.

        batch, pass_number: the numbers of the batch and of its pass; None: the numbers of the batch
        that this thread is making. cpu_ns: see Event.
        """
        if self.count >= self.most_events:
            return
        if self.place == self.num_bytes and not self._extend():
            return
        self.count += 1
        if batch is None:
            batch = self.current.number
        if pass_number is None:
            pass_number = self.current.pass_number
        _pack_into(
            self.records, self.place, _NUMBERS[part], start_ns, batch, pass_number, cpu_ns, stop_ns
        )
        self.place += RECORD_BYTES

    def _extend(self) -> bool:
        """Map more records; False if the disk is full."""
        try:
            self.records = _map_more(self.path)
            self.place = 0
            self.num_bytes = len(self.records)
        except OSError:
            if not self.is_lenient:
                raise
            # Later events must not try again: each attempt on a full disk would cost the script
            # time.
            self.most_events = 0
            return False
        return True


LogKey = tuple[Path, LaneKey | tuple[int, LaneKind]]
"""A log's folder, and either a lane, or a thread's id and the kind of its lane."""
_logs: dict[LogKey, ThreadLog] = {}
"""The logs of this process."""
_last = local()
"""`folder` and `log` of the thread's last call of `EventLog.here`."""
# A signal's handler, or a finalizer, may record an event while its thread has the lock.
_lock = RLock()
"""Held while `_logs` is changed or counted."""


def _forget_parent() -> None:
    """Forget the logs of the process from which this one was forked."""
    global _lock  # noqa: PLW0603 - all logs of a process share it
    # A thread of the parent may hold the lock, and does not exist here.
    _lock = RLock()
    # Parent and child would write to the same places of a shared mapping.
    _logs.clear()
    # Only the thread that has forked exists here.
    _last.__dict__.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


@dataclass(frozen=True)
class EventLog:
    """A log of events in a folder, which must exist; plain data that can be pickled."""

    folder: Path
    most_events: int = MOST_EVENTS
    main_process_id: int | None = field(default_factory=os.getpid)
    """The process of the loop, which made the log; None: any process may have loops."""
    is_lenient: bool = False
    """True: a full disk ends the log, and not the process that writes to it."""

    def here(self, kind: LaneKind = LaneKind.THREAD) -> ThreadLog:
        """The log of this thread.

        kind: the kind of the thread's lane; only a thread's first call uses it. A main thread
        always has the lane of its process.
        """
        # Called for every event: comparing identities is faster than hashing a path.
        if getattr(_last, "folder", None) is self.folder:
            return _last.log
        # The system may give this thread the id of a thread that has ended, perhaps one with
        # another kind of lane.
        key = self.folder, (get_ident(), kind)
        log = _logs.get(key) or self._add_log(key, self._lane_of_process(), kind)
        log.current = current_batch()
        _last.folder = self.folder
        _last.log = log
        return log

    def of_lane(self, lane: LaneKey) -> ThreadLog:
        """The log of a thread of this process that runs no Python and so can't write itself."""
        key = self.folder, lane
        return _logs.get(key) or self._add_log(key, lane)

    def add_fact(self, **fact: Any) -> None:
        """Write a fact about this process at once, such as a loader's settings."""
        try:
            # One write of a line to a file opened with O_APPEND: threads don't mix their lines.
            line = json.dumps(fact).encode() + b"\n"
            _append(self.folder / f"{os.getpid()}{FACTS}", line)
        except OSError:
            if not self.is_lenient:
                raise

    def read(self) -> list[Event]:
        """The events of all processes, including processes that still run or were killed."""
        return [event for path in sorted(self.folder.glob(f"*{SUFFIX}")) for event in _read(path)]

    def read_new(self, offsets: dict[Path, int]) -> list[Event]:
        """The events after the offset of each file; the offsets are moved past them.

        offsets: file -> offset in bytes, or UNKNOWN for a file that will get no more events.
        """
        found: list[Event] = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            offset = offsets.get(path, 0)
            if offset == UNKNOWN:
                continue
            # This is asked before reading: a process that ends after the question may have added
            # events, which the next call must read.
            is_alive = _is_alive(int(path.name.partition(" ")[0]))
            # A thread adds its events in order, so the first empty record follows the last event.
            events = list(_read(path, offset))
            offsets[path] = offset + len(events) * RECORD_BYTES
            found += events
            # The file of an ended process is not read again: a script may start new workers
            # thousands of times.
            if not events and not is_alive:
                offsets[path] = UNKNOWN
        return found

    def read_facts(self) -> dict[int, list[dict[str, Any]]]:
        """The facts of each process, by its id."""
        facts = {}
        for path in sorted(self.folder.glob(f"*{FACTS}")):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            # A process that was killed may have left half a line.
            whole = [line for line in lines if line.endswith("\n")]
            facts[int(path.stem)] = [json.loads(line) for line in whole]
        return facts

    def read_new_facts(self, offsets: dict[Path, int]) -> list[tuple[int, dict[str, Any]]]:
        """The facts after the offset of each file, each with the id of its process.

        offsets: file -> offset in bytes, which is moved past these facts.
        """
        found = []
        for path in sorted(self.folder.glob(f"*{FACTS}")):
            with path.open("rb") as file:
                file.seek(offsets.get(path, 0))
                # A process may be in the middle of a line.
                whole = file.read().rpartition(b"\n")[0]
            lines = whole.splitlines()
            offsets[path] = offsets.get(path, 0) + (len(whole) + 1 if lines else 0)
            found += [(int(path.stem), json.loads(line)) for line in lines]
        return found

    def close(self) -> None:
        """Forget the files that this process has open for the log."""
        with _lock:
            # The keys are copied in one step: a finalizer that runs during the loop may add a log.
            for key in [*_logs]:
                if key[0] == self.folder:
                    del _logs[key]
        _last.__dict__.clear()

    def _lane_of_process(self) -> LaneKey:
        """The lane of this process's main thread."""
        # A process that is attached to may import this module before torch.utils.data is complete,
        # and a process that only reads needs no torch.
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        is_loop = self.main_process_id in (None, os.getpid())
        lane = LOOP_LANE if is_loop else LaneKey(LaneKind.PROCESS)
        # torch tells this in worker processes only.
        return lane if info is None else LaneKey(LaneKind.WORKER, info.id)

    def _add_log(self, key: LogKey, lane: LaneKey, kind: LaneKind | None = None) -> ThreadLog:
        """A new log under this key.

        lane: the log's lane if there is no kind. With a kind, it is the lane of this process: its
        main thread has this lane, and any other thread gets a lane of this kind.
        """
        is_main = current_thread() is main_thread()
        with _lock:
            # The thread is numbered, because its lane names a file with one writer.
            if kind is not None and not is_main:
                count = sum(each[0] == self.folder for each in [*_logs])
                lane = LaneKey(kind, count, None if lane == LOOP_LANE else lane)
            path = self.folder / f"{os.getpid()} {lane.encode()}{SUFFIX}"
            return _logs.setdefault(key, ThreadLog(path, self.most_events, self.is_lenient))


@contextmanager
def open_log() -> Iterator[EventLog]:
    """A log in a folder that is deleted at the end."""
    with TemporaryDirectory(prefix="fastloop-") as folder:
        log = EventLog(Path(folder))
        try:
            yield log
        finally:
            log.close()


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _append(path: Path, data: bytes) -> None:
    """Append all of the data to a file, or nothing.

    Raises OSError if the disk is full.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if (written := os.write(file, data)) < len(data):
            # The next line would begin in the middle of this one.
            os.ftruncate(file, os.fstat(file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def _read(path: Path, offset: int = 0) -> Iterator[Event]:
    process_id, text = path.name.removesuffix(SUFFIX).split(" ", 1)
    lane = LaneKey.decode(text)
    for part, start_ns, batch, pass_number, cpu_ns, stop_ns in _read_records(path, offset):
        yield Event(
            int(process_id), lane, _PARTS[part], start_ns, stop_ns, batch, pass_number, cpu_ns
        )
