"""Follow a running script's loops, by the records that its processes have written so far."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastloop.core.number_text import show_percent, significant
from fastloop.core.parts import Part
from fastloop.explain.attach.attribution import WAIT_PARTS, attribute_waits, makers_of_pass
from fastloop.explain.attach.loop_passes import (
    OF_LOOPS,
    LoaderPass,
    describe_loaders,
    find_passes,
    is_about_loader,
    is_about_pass,
)
from fastloop.explain.attach.recorded_processes import ProcessRecords, open_script_log
from fastloop.explain.verdict import WORTH_IMPROVING
from fastloop.observe.event_log import Event

WINDOW_S = 10
"""The status line shows the share of waiting in this many last seconds."""
MOST_RECENT = 4000
"""Maximum number of events of a process that are kept for the share of waiting."""
MOST_PASSES = 1000
"""Passes of a process about which facts are kept."""


@dataclass(frozen=True, kw_only=True)
class LiveLoop:
    """The pass with the newest event among the passes of a process that have not ended."""

    process_id: int
    number: int
    place: str
    pids: tuple[int, ...]
    """Process ids of its workers."""
    is_waiting: bool
    """True: the loop waits for data. False: it works on a batch, or the script has left it."""
    start_method: str
    """The way in which its workers start; empty if it is not known."""
    is_stream: bool = False
    """True if its dataset is an IterableDataset: a worker ends once it has no more samples."""


@dataclass
class _ProcessHistory:
    """A process's records: the beginnings of its passes, and its last events."""

    recent: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    starts: dict[int, Event] = field(default_factory=dict)
    """The event with which each pass has begun."""
    last: dict[int, Part] = field(default_factory=dict)
    """The last part of each pass that has not ended, the newest pass last."""
    batches: Counter[int] = field(default_factory=Counter)
    """Number of batches of each pass."""
    passes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The facts about the newest passes, by number."""
    loaders: list[dict[str, Any]] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    """Number of batches of forgotten passes, by place."""

    def add(self, event: Event) -> None:
        """Add an event, which is newer than those before."""
        self.recent.append(event)
        number = event.pass_number
        if event.part not in OF_LOOPS:
            return
        if event.part is Part.START:
            self.starts[number] = event
        self.batches[number] += event.part is Part.WAIT
        self.last.pop(number, None)
        if event.part is not Part.END:
            self.last[number] = event.part

    def add_fact(self, fact: dict[str, Any]) -> None:
        """Add a fact about a loader or a pass."""
        if is_about_pass(fact):
            # A later fact corrects the place of a pass.
            self.passes.setdefault(fact["pass_number"], {}).update(fact)
        elif is_about_loader(fact):
            self.loaders.append(fact)

    def forget_old(self) -> None:
        """Forget the older half of the passes if they are many."""
        if len(self.passes) < MOST_PASSES:
            return
        for number in [*self.passes][: MOST_PASSES // 2]:
            # The newest of the passes that have not ended may be the loop's, and is kept. The
            # script has left the others.
            if number not in self.last or number != next(reversed(self.last)):
                self.last.pop(number, None)
                self.starts.pop(number, None)
                self.totals[self.passes.pop(number)["place"]] += self.batches.pop(number, 0)
        del self.loaders[: -MOST_PASSES // 2]

    def find_start_method(self, loader: int) -> str:
        """The way in which the workers of the loader with that number start; empty if unknown."""
        methods = (each["start_method"] for each in self.loaders if each["loader"] == loader)
        return next(methods, "")

    def reads_stream(self, loader: int) -> bool:
        """True if that loader reads an IterableDataset."""
        return any(each.get("iterable") for each in self.loaders if each["loader"] == loader)

    def count_batches(self, place: str) -> int:
        """The number of batches of all loops at the place."""
        numbers = [number for number, fact in self.passes.items() if fact["place"] == place]
        return self.totals[place] + sum(self.batches[number] for number in numbers)

    def recent_events(self) -> tuple[Event, ...]:
        """The events of the last WINDOW_S, and the beginnings of their passes."""
        since_ns = self.recent[-1].stop_ns - 1e9 * WINDOW_S if self.recent else 0
        events = [each for each in self.recent if each.stop_ns >= since_ns]
        numbers = {each.pass_number for each in events} & {*self.starts}
        starts = [self.starts[number] for number in numbers]
        others = [each for each in events if each.part is not Part.START]
        return tuple(sorted([*starts, *others], key=lambda each: each.start_ns))


class LiveLoops:
    """The loops of the processes that record to a folder; `update` reads the new records."""

    def __init__(self, folder: Path) -> None:
        self.log = open_script_log(str(folder))
        self._offsets: dict[Path, int] = {}
        self._processes: dict[int, _ProcessHistory] = defaultdict(_ProcessHistory)
        self._facts_read: dict[Path, int] = {}

    def update(self) -> set[int]:
        """Read new events; returns the ids of the processes that have recorded any."""
        events = self.log.read_new(self._offsets)
        if not events:
            return set()
        # A process writes the facts of a pass before its events. So facts that are read after the
        # events include the facts of all their passes.
        for process_id, fact in self.log.read_new_facts(self._facts_read):
            self._processes[process_id].add_fact(fact)
        for event in sorted(events, key=lambda each: each.stop_ns):
            self._processes[event.process_id].add(event)
        newest_ns = max(event.stop_ns for event in events)
        for process_id, process in list(self._processes.items()):
            process.forget_old()
            # A process without passes and without new events is a worker that has ended.
            is_old = process.recent and process.recent[-1].stop_ns < newest_ns - 1e9 * WINDOW_S
            if is_old and not process.passes:
                del self._processes[process_id]
        return {event.process_id for event in events}

    def loops(self) -> list[LiveLoop]:
        """The loop of each process that has one."""
        return [
            loop
            for process_id, process in self._processes.items()
            if process.last and (loop := self._loop(process_id, process))
        ]

    def _loop(self, process_id: int, process: _ProcessHistory) -> LiveLoop | None:
        number = next(reversed(process.last))
        facts = process.passes.get(number)
        if not facts:
            return None
        # A wait is recorded when it ends, so a loop with WAIT as its last event has its batch.
        return LiveLoop(
            process_id=process_id,
            number=number,
            place=facts["place"],
            pids=tuple(facts["pids"]),
            is_waiting=process.last[number] is not Part.WAIT,
            start_method=process.find_start_method(facts["loader"]),
            is_stream=process.reads_stream(facts["loader"]),
        )

    def describe(self, loop: LiveLoop) -> str:
        """The text of the status line: the loop's place, number of batches and speed, the share of
        its last seconds that it waited, and the greatest part of that wait."""
        records = [
            ProcessRecords(
                process_id=process_id,
                events=process.recent_events(),
                facts=(*process.loaders, *process.passes.values()),
            )
            for process_id, process in self._processes.items()
        ]
        own = self._processes[loop.process_id]
        record = next(each for each in records if each.process_id == loop.process_id)
        count = own.count_batches(loop.place)
        passes = [each for each in find_passes(record) if each.place == loop.place]
        size = None
        if passes:
            size = describe_loaders(record).get(passes[-1].loader, {}).get("batch_size")
        recent = _describe_recent(passes, records, size) if passes else []
        return ", ".join([f"{loop.place}: {count:,} batches", *recent])


def _describe_recent(
    passes: Sequence[LoaderPass], records: Sequence[ProcessRecords], batch_size: int | None
) -> list[str]:
    waits = [attribute_waits(each, makers_of_pass(each, records)) for each in passes]
    parts_ns = np.concatenate(waits).sum(0)
    batches = sum(map(len, waits))
    step_ns = sum(sum(each.step_ns) for each in passes)
    whole_ns = parts_ns.sum() + step_ns
    rate = 1e9 * batches / max(1, whole_ns)
    speed = f"{significant(rate * (batch_size or 1))} {'samples' if batch_size else 'batches'}/s"
    share = parts_ns.sum() / max(1, whole_ns)
    cause = f" ({WAIT_PARTS[int(parts_ns.argmax())]})" if share >= WORTH_IMPROVING else ""
    return [speed, f"waits {show_percent(share)}{cause}"]
