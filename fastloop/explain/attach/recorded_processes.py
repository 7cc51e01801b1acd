"""Read the records of a script's processes, and the batches that a process has made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.observe.event_log import Event, EventLog

MOST_EVENTS = 400_000
"""Maximum number of recorded events of a thread; they take 19 MB."""
MAKING = (Part.FETCH, Part.COLLATE, Part.TRANSFORM)
"""The parts of the events that give the times of making a batch."""


def open_script_log(folder: str) -> EventLog:
    """The log of a script's processes."""
    return EventLog(Path(folder), MOST_EVENTS, main_process_id=None, is_lenient=True)


@dataclass(frozen=True, kw_only=True)
class ProcessRecords:
    """The records of a process."""

    process_id: int
    events: tuple[Event, ...]
    facts: tuple[dict[str, Any], ...]

    @cached_property
    def by_pass(self) -> dict[int, list[Event]]:
        """The events by the number of their pass."""
        # They are grouped once for all passes, because a script may have many passes.
        groups: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.pass_number].append(event)
        return groups


@dataclass(kw_only=True)
class MadeBatch:
    """A batch that a worker, or the loop's own process, has made, and the times of making it."""

    batch: int
    start_ns: int
    collate_ns: int
    """Start of its collation; equal to stop_ns if nothing was collated."""
    stop_ns: int
    cpu_ns: int
    """CPU time of making it; UNKNOWN if its samples were not recorded."""
    transform_ns: int = 0
    """Time in the dataset's transform; 0 if its samples were not recorded."""

    @property
    def has_samples(self) -> bool:
        """True if its samples were recorded."""
        return self.cpu_ns != UNKNOWN


def read_records(folder: Path) -> list[ProcessRecords]:
    """The records of all processes, in the order of their first events."""
    log = open_script_log(str(folder))
    events: dict[int, list[Event]] = defaultdict(list)
    for event in log.read():
        events[event.process_id].append(event)
    facts = log.read_facts()
    # A process may have made a DataLoader, and never iterated over it.
    first_ns = dict.fromkeys(facts, math.inf) | {
        pid: own[0].start_ns for pid, own in events.items()
    }
    return [
        ProcessRecords(
            process_id=process_id,
            events=tuple(events.get(process_id, ())),
            facts=tuple(facts.get(process_id, ())),
        )
        for process_id in sorted(first_ns, key=lambda each: first_ns[each])
    ]


def batches_of_process(events: Iterable[Event]) -> list[MadeBatch]:
    """The batches that one process has made in one pass, in the order of their starts."""
    parts: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.part in MAKING:
            parts[event.batch].append(event)
    made = [_batch_of_events(each) for each in parts.values()]
    return sorted((each for each in made if each), key=lambda each: each.start_ns)


def _batch_of_events(events: list[Event]) -> MadeBatch | None:
    fetch = next((event for event in events if event.part is Part.FETCH), None)
    # The process ended, or the dataset raised an error, while the batch was made.
    if fetch is None:
        return None
    collates = [event.start_ns for event in events if event.part is Part.COLLATE]
    transforms = [event for event in events if event.part is Part.TRANSFORM]
    return MadeBatch(
        batch=fetch.batch,
        start_ns=fetch.start_ns,
        collate_ns=min(collates, default=fetch.stop_ns),
        stop_ns=fetch.stop_ns,
        cpu_ns=fetch.cpu_ns,
        transform_ns=sum(event.stop_ns - event.start_ns for event in transforms),
    )
