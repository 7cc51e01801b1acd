"""A log of events that any number of processes write, each to a file of its own."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread, get_ident, main_thread

from torch.utils.data import get_worker_info

from fastloop.timeline.events import STAGES, Event, Stage

MOST_EVENTS = 100_000
"""Events of a thread, at 32 bytes; later ones are not recorded."""
MAIN = "main"
SUFFIX = ".events"
FIELDS = 4
"""Stage, start, stop and batch of an event, each an int64."""
_NUMBERS = {stage: number for number, stage in enumerate(STAGES)}


@dataclass
class ThreadLog:
    """The events of a thread."""

    path: Path
    most_events: int
    batch: int = 0
    """Number of the batch that is being made here, counted by this thread."""
    arrived: int = 0
    """Number of the batch that the loop has, or waits for."""
    count: int = 0
    pending: list[tuple[int, int, int, int]] = field(default_factory=list)

    @property
    def is_detailed(self) -> bool:
        """True while there is room for an event for each sample, not only for each batch."""
        return self.count < self.most_events // 2

    def add(self, stage: Stage, start_ns: int, stop_ns: int, batch: int | None = None) -> None:
        """Record an event; of the batch that is being made here unless another one is named."""
        if self.count < self.most_events:
            self.count += 1
            number = self.batch if batch is None else batch
            self.pending.append((_NUMBERS[stage], start_ns, stop_ns, number))

    def end_batch(self) -> None:
        """Write the events of a batch, as a worker may end at any time."""
        self.batch += 1
        self.write()

    def write(self) -> None:
        """Append what is not in the file yet."""
        if self.pending:
            pending, self.pending = self.pending, []
            with self.path.open("ab", buffering=0) as file:
                file.write(array("q", chain.from_iterable(pending)).tobytes())


_logs: dict[tuple[Path, int, int], ThreadLog] = {}
"""By folder, process and thread; also those inherited by fork, which this process does not use."""


@dataclass(frozen=True)
class EventLog:
    """Plain data that can be pickled: the folder of the log's files, which must exist."""

    folder: Path
    most_events: int = MOST_EVENTS
    main_process_id: int = field(default_factory=os.getpid)
    """Of the loop: the process that made the log."""

    def here(self) -> ThreadLog:
        """The log of this thread."""
        key = self.folder, os.getpid(), get_ident()
        return _logs.get(key) or _logs.setdefault(key, self._open())

    def read(self) -> list[Event]:
        """The events of all processes; of others that still run, what they have written."""
        for (folder, process_id, _), log in list(_logs.items()):
            if (folder, process_id) == (self.folder, os.getpid()):
                log.write()
        return [event for path in sorted(self.folder.glob(f"*{SUFFIX}")) for event in _read(path)]

    def close(self) -> None:
        """Forget what this process holds of the log."""
        for key in [key for key in _logs if key[0] == self.folder]:
            del _logs[key]

    def _open(self) -> ThreadLog:
        process_id, info = os.getpid(), get_worker_info()
        lane = MAIN if process_id == self.main_process_id else "process"
        if info is not None:
            lane = f"worker {info.id}"
        if current_thread() is not main_thread():
            count = sum(key[:2] == (self.folder, process_id) for key in _logs)
            lane = f"thread {count}" if lane == MAIN else f"{lane}, thread {count}"
        path = self.folder / f"{process_id} {lane}{SUFFIX}"
        return ThreadLog(path, self.most_events)


@contextmanager
def open_log() -> Iterator[EventLog]:
    """A log in a folder that is deleted at the end."""
    with TemporaryDirectory(prefix="fastloop-") as folder:
        log = EventLog(Path(folder))
        try:
            yield log
        finally:
            log.close()


def _read(path: Path) -> Iterator[Event]:
    process_id, _, lane = path.name.removesuffix(SUFFIX).partition(" ")
    data = array("q")
    content = path.read_bytes()
    size = FIELDS * data.itemsize
    data.frombytes(content[: len(content) // size * size])  # without the rest of a killed write
    for place in range(0, len(data), FIELDS):
        stage, start_ns, stop_ns, batch = data[place : place + FIELDS]
        yield Event(int(process_id), lane, STAGES[stage], start_ns, stop_ns, batch)
