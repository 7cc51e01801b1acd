"""A log of events that any number of processes write, each thread to a file of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, get_ident, local, main_thread
from typing import Any

from torch.utils.data._utils.worker import get_worker_info  # torch.utils.data may not be there yet

from fastloop.timeline.event_file import RECORD, map_more, read_records
from fastloop.timeline.events import STAGES, UNKNOWN, Event, Stage

MOST_EVENTS = 100_000
"""Events of a thread, at 48 bytes; later ones are not recorded."""
MAIN = "main"
SUFFIX, FACTS = ".events", ".facts"
_NUMBERS = {stage: number for number, stage in enumerate(STAGES)}


@dataclass
class ThreadLog:
    """The events of a thread."""

    path: Path
    most_events: int
    is_lenient: bool = False
    batch: int = 0
    """Number of the batch that is being made here."""
    epoch: int = UNKNOWN
    """Number of the pass over a loader for which it is made."""
    arrived: int = 0
    """Number of the batch that the loop has, or waits for."""
    count: int = 0
    records: mmap | bytearray = field(default_factory=bytearray)
    """The last part of the file."""
    place: int = 0
    """Where the next event belongs in it."""

    @property
    def is_detailed(self) -> bool:
        """True while there is room for an event for each sample, not only for each batch."""
        return self.count < self.most_events // 2

    def add(
        self,
        stage: Stage,
        start_ns: int,
        stop_ns: int,
        batch: int | None = None,
        epoch: int | None = None,
        cpu_ns: int = UNKNOWN,
    ) -> None:
        """Record an event; of the batch that is being made here unless another one is named."""
        if self.count >= self.most_events:
            return
        if self.place == len(self.records) and not self._extend():
            return
        self.count += 1
        number = self.batch if batch is None else batch
        in_pass = self.epoch if epoch is None else epoch
        record = _NUMBERS[stage], start_ns, number, in_pass, cpu_ns, stop_ns
        RECORD.pack_into(self.records, self.place, *record)
        self.place += RECORD.size

    def _extend(self) -> bool:
        """Make place for events; False for a disk that is full, for good."""
        try:
            self.records, self.place = map_more(self.path), 0
        except OSError:
            if not self.is_lenient:
                raise
            self.most_events = 0
            return False
        return True


_logs: dict[tuple[Path, int | str], ThreadLog] = {}
"""By folder and thread, or name: those of this process."""
_last = local()
"""`folder` and `log` of what a thread has asked for last."""


def _forget_parent() -> None:
    """Leave the records of the process from which this one was forked to that one."""
    _logs.clear()
    _last.__dict__.clear()  # that of the thread which has forked, the only one here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


@dataclass(frozen=True)
class EventLog:
    """Plain data that can be pickled: the folder of the log's files, which must exist."""

    folder: Path
    most_events: int = MOST_EVENTS
    main_process_id: int | None = field(default_factory=os.getpid)
    """Of the loop: the process that made the log; None: any process may have loops."""
    is_lenient: bool = False
    """True: a disk that is full ends the log, and not the process that writes to it."""

    def here(self) -> ThreadLog:
        """The log of this thread."""
        if getattr(_last, "folder", None) is self.folder:
            return _last.log
        key = self.folder, get_ident()
        log = _logs.get(key) or _logs.setdefault(key, self._open(self._name_lane()))
        _last.folder, _last.log = self.folder, log
        return log

    def lane(self, name: str) -> ThreadLog:
        """The log of a thread of this process that can't write itself."""
        key = self.folder, name
        return _logs.get(key) or _logs.setdefault(key, self._open(name))

    def add_fact(self, **fact: Any) -> None:
        """Record something about this process that is no event, at once."""
        try:
            line = json.dumps(fact).encode() + b"\n"
            _append(self.folder / f"{os.getpid()}{FACTS}", line)
        except OSError:
            if not self.is_lenient:
                raise

    def read(self) -> list[Event]:
        """The events of all processes, also of those that still run or were killed."""
        return [event for path in sorted(self.folder.glob(f"*{SUFFIX}")) for event in _read(path)]

    def read_facts(self) -> dict[int, list[dict[str, Any]]]:
        """The facts of each process, by its id."""
        facts = {}
        for path in sorted(self.folder.glob(f"*{FACTS}")):
            lines = path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # not of a killed write
            facts[int(path.stem)] = [json.loads(line) for line in whole]
        return facts

    def close(self) -> None:
        """Forget what this process holds of the log."""
        for key in [key for key in _logs if key[0] == self.folder]:
            del _logs[key]
        _last.__dict__.clear()

    def _name_lane(self) -> str:
        process_id, info = os.getpid(), get_worker_info()
        lane = MAIN if self.main_process_id in (None, process_id) else "process"
        if info is not None:
            lane = f"worker {info.id}"
        if current_thread() is not main_thread():
            count = sum(key[0] == self.folder for key in _logs)
            lane = f"thread {count}" if lane == MAIN else f"{lane}, thread {count}"
        return lane

    def _open(self, lane: str) -> ThreadLog:
        path = self.folder / f"{os.getpid()} {lane}{SUFFIX}"
        return ThreadLog(path, self.most_events, self.is_lenient)


@contextmanager
def open_log() -> Iterator[EventLog]:
    """A log in a folder that is deleted at the end."""
    with TemporaryDirectory(prefix="fastloop-") as folder:
        log = EventLog(Path(folder))
        try:
            yield log
        finally:
            log.close()


def _append(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _read(path: Path) -> Iterator[Event]:
    process_id, _, lane = path.name.removesuffix(SUFFIX).partition(" ")
    for stage, start_ns, batch, epoch, cpu_ns, stop_ns in read_records(path):
        yield Event(int(process_id), lane, STAGES[stage], start_ns, stop_ns, batch, epoch, cpu_ns)
