"""Lanes made of events: batches numbered, queues derived, and the share of time accounted for."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fastloop.timeline.event_log import MAIN
from fastloop.timeline.events import Event, Stage

NO_BATCH = -1


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Events of one process in the order of their starts; those inside of others come after them,
    and otherwise none overlap."""

    name: str
    process_id: int
    events: tuple[Event, ...]


def build_lanes(events: Iterable[Event]) -> list[Lane]:
    """The lanes of a log's events: of the main process, of each worker, and of its queue.

    Batches of workers get the numbers that the loop gives them, by the order in which DataLoader
    takes them; those that never arrived get NO_BATCH.
    """
    main, work = _split(events)
    numbers = _number_batches(main, work)
    work = [replace(e, batch=numbers.get((e.process_id, e.batch), NO_BATCH)) for e in work]
    queues = _queue_events(work, {e.batch: e for e in main if e.name is Stage.WAIT})
    by_lane: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for event in [*main, *work, *queues]:
        by_lane[event.process_id, event.lane].append(event)
    lanes = [
        Lane(name=name, process_id=process_id, events=row)
        for (process_id, lane), group in by_lane.items()
        for name, row in _rows(lane, group)
    ]
    return sorted(lanes, key=_place)


def coverage(events: Iterable[Event], start_ns: int, stop_ns: int) -> float:
    """Share of the time from start to stop in which at least one of the events runs."""
    covered_ns, reached_ns = 0, start_ns
    for event in sorted(events, key=_order):
        begin_ns, end_ns = max(event.start_ns, reached_ns), min(event.stop_ns, stop_ns)
        covered_ns += max(0, end_ns - begin_ns)
        reached_ns = max(reached_ns, end_ns)
    return covered_ns / (stop_ns - start_ns)


def _split(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    main, work = [], []
    for event in events:
        (main if event.lane == MAIN else work).append(event)
    return main, work


def _number_batches(main: Iterable[Event], work: Iterable[Event]) -> dict[tuple[int, int], int]:
    """The loop's number of each batch, by its process and the process's own number of it."""
    starts = sorted(event.start_ns for event in main if event.name is Stage.START)
    arrivals = _by_epoch((e for e in main if e.name is Stage.WAIT), starts)
    made = _by_epoch((e for e in work if e.name is Stage.COLLATE), starts)
    numbers: dict[tuple[int, int], int] = {}
    for epoch, batches in made.items():
        queues: dict[tuple[int, int], deque[Event]] = defaultdict(deque)
        for batch in batches:
            queues[_worker_number(batch.lane), batch.process_id].append(batch)
        numbers |= _match(arrivals[epoch], [queue for _, queue in sorted(queues.items())])
    return numbers


def _by_epoch(events: Iterable[Event], starts: Sequence[int]) -> dict[int, list[Event]]:
    """The events in order, by the number of starts before them."""
    groups: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=_order):
        groups[bisect_right(starts, event.start_ns)].append(event)
    return groups


def _match(arrivals: Sequence[Event], queues: Sequence[deque[Event]]) -> dict[tuple[int, int], int]:
    """The numbers of arrivals, by process and the process's own number.

    DataLoader takes batches from its workers in turn, and passes over one that has ended.
    """
    numbers, turn = {}, 0
    for arrival in arrivals:
        for place in range(turn, turn + len(queues)):
            queue = queues[place % len(queues)]
            if queue and queue[0].stop_ns <= arrival.stop_ns:
                batch = queue.popleft()
                numbers[batch.process_id, batch.batch] = arrival.batch
                turn = place + 1
                break
    return numbers


def _queue_events(work: Iterable[Event], arrivals: dict[int, Event]) -> list[Event]:
    return [
        replace(
            event,
            lane=event.lane.replace("worker", "queue"),
            name=Stage.QUEUE,
            start_ns=event.stop_ns,
            stop_ns=arrivals[event.batch].stop_ns,
        )
        for event in work
        if event.name is Stage.COLLATE and event.batch in arrivals
    ]


def _rows(lane: str, events: Iterable[Event]) -> list[tuple[str, tuple[Event, ...]]]:
    """Name and events of each row of a lane: as few as there are batches in a queue at once."""
    rows: list[list[Event]] = []
    for event in sorted(events, key=_order):
        for row in rows:
            if event.name is not Stage.QUEUE or row[-1].stop_ns <= event.start_ns:
                row.append(event)
                break
        else:
            rows.append([event])
    names = [lane, *(f"{lane} ({number})" for number in range(2, len(rows) + 1))]
    return [(name, tuple(row)) for name, row in zip(names, rows, strict=True)]


def _order(event: Event) -> tuple[int, int]:
    return event.start_ns, -event.stop_ns


def _worker_number(lane: str) -> int:
    return int(lane.split()[1])


def _place(lane: Lane) -> tuple[bool, int, int, bool, str]:
    """Workers first, each with its queue below, then the main process: as a batch travels."""
    if lane.name == MAIN:
        return True, 0, 0, False, lane.name
    is_queue = not lane.name.startswith("worker")
    return False, _worker_number(lane.name), lane.process_id, is_queue, lane.name
