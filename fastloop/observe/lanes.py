"""Sort recorded events into lanes, and the events of a lane into the rows of a timeline.

A lane is the work of a thread or device, or the batches of a queue. It has one row, except for a
queue, which has several if several batches wait in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind

OF_PASSES = (Part.START, Part.END, Part.GAP)
"""Parts of events that belong to a pass, an iteration over a loader, and to no batch."""
OTHERS = 1
"""The group of all lanes of makers of batches that GROUPS does not name."""
GROUPS = {LaneKind.WORKER: 0, LaneKind.LOOP: 3, LaneKind.DEVICE: 4}
"""Kind of a lane's process -> the group of the lane in a picture, numbered from the top down."""
OF_SHARED_QUEUE = 2
"""The group of the queue that all native threads fill: below these threads."""


@dataclass(frozen=True, kw_only=True)
class LaneRow:
    """A row of a timeline: events of one lane, in the order of their starts.

    Two events are nested or don't overlap; an inner event comes after the outer one.
    """

    key: LaneKey
    """The key of the lane."""
    number: int = 1
    """Number of the row in its lane, from 1 on. A queue has a row for each batch that waits in the
    queue at the same time; every other lane has one row."""
    process_id: int
    events: tuple[Event, ...]

    @property
    def name(self) -> str:
        """The name in pictures and traces."""
        return self.key.name if self.number == 1 else f"{self.key.name} ({self.number})"


def build_lane_rows(events: Iterable[Event]) -> list[LaneRow]:
    """The rows of a pass, from the top down: of each worker and its queue, of threads, of the loop
    and its device.

    events: the events of one pass of a loop; each pass numbers its batches from 0 on.
    """
    events = _count_batches(list(events))
    main = [event for event in events if event.lane == LOOP_LANE]
    device = [event for event in events if event.lane.kind is LaneKind.DEVICE]
    work = [e for e in events if e.lane.kind not in (LaneKind.LOOP, LaneKind.DEVICE)]
    queues = _queue_events(main, work)
    by_lane: dict[tuple[int, LaneKey], list[Event]] = defaultdict(list)
    for event in [*main, *device, *work, *queues]:
        by_lane[event.process_id, event.lane].append(event)
    rows = [
        LaneRow(key=key, number=number, process_id=process_id, events=tuple(row))
        for (process_id, key), group in by_lane.items()
        for number, row in enumerate(_divide_into_rows(group), 1)
    ]
    return sorted(rows, key=_place)


def _count_batches(events: list[Event]) -> list[Event]:
    """The events, with the batches of the pass numbered from 0 on without gaps."""
    # DataLoader also numbers batches that are never made, if a worker of an IterableDataset ends
    # before others. And a kept iterator continues its numbers in the next pass.
    numbers = sorted(
        {each.batch for each in events if each.batch != UNKNOWN and each.part not in OF_PASSES}
    )
    if numbers == [*range(len(numbers))]:
        return events
    places = {number: place for place, number in enumerate(numbers)}
    return [replace(each, batch=places.get(each.batch, each.batch)) for each in events]


def last_passes(events: Iterable[Event]) -> list[Event]:
    """The events of each process's last pass.

    Persistent workers may still finish a batch of the previous pass while the last pass begins.
    """
    events = list(events)
    last: dict[int, int] = defaultdict(lambda: UNKNOWN)
    for event in events:
        last[event.process_id] = max(last[event.process_id], event.pass_number)
    return [event for event in events if event.pass_number in (UNKNOWN, last[event.process_id])]


def coverage(events: Iterable[Event], start_ns: int, stop_ns: int) -> float:
    """Share of the time from start to stop in which at least one of the events runs."""
    covered_ns = 0
    reached_ns = start_ns
    for event in sorted(events, key=_order):
        # Time before reached_ns is covered already, so overlapping events count once.
        begin_ns, end_ns = max(event.start_ns, reached_ns), min(event.stop_ns, stop_ns)
        covered_ns += max(0, end_ns - begin_ns)
        reached_ns = max(reached_ns, end_ns)
    return covered_ns / (stop_ns - start_ns)


def flatten(events: Iterable[Event]) -> list[Event]:
    """The events of a lane, cut into pieces that don't overlap.

    At each time, the piece is of the innermost event.
    """
    pieces: list[Event] = []
    # The events that are open at reached_ns, the innermost one last. Everything before that is in
    # `pieces`.
    stack: list[Event] = []
    reached_ns = 0

    def add_piece(event: Event, stop_ns: int) -> None:
        if stop_ns > reached_ns:
            pieces.append(replace(event, start_ns=reached_ns, stop_ns=stop_ns))

    for event in sorted(events, key=_order):
        while stack and stack[-1].stop_ns <= event.start_ns:
            add_piece(stack[-1], stack[-1].stop_ns)
            # An outer event may end before an inner one, but time must not go back.
            reached_ns = max(reached_ns, stack.pop().stop_ns)
        if stack:
            add_piece(stack[-1], event.start_ns)
        reached_ns = event.start_ns
        stack.append(event)
    while stack:
        add_piece(stack[-1], stack[-1].stop_ns)
        reached_ns = max(reached_ns, stack.pop().stop_ns)
    return pieces


def part_seconds(events: Iterable[Event]) -> dict[Part, float]:
    """Seconds of each part of a lane, the longest first.

    The time of an inner event counts for its own part only.
    """
    totals_ns: dict[Part, int] = defaultdict(int)
    for piece in flatten(events):
        totals_ns[piece.part] += piece.stop_ns - piece.start_ns
    longest = sorted(totals_ns.items(), key=lambda item: -item[1])
    return {part: total_ns / 1e9 for part, total_ns in longest}


def _divide_into_rows(events: Iterable[Event]) -> list[list[Event]]:
    """The events of a lane, divided into the rows in which a picture shows them."""
    rows: list[list[Event]] = []
    for event in sorted(events, key=_order):
        # Batches wait in a queue at the same time; in all other lanes events are nested.
        for row in rows:
            if event.part is not Part.QUEUE or row[-1].stop_ns <= event.start_ns:
                row.append(event)
                break
        else:
            rows.append([event])
    return rows


def _order(event: Event) -> tuple[int, int]:
    # If several events start together, the longest comes first: it is the outer one.
    return event.start_ns, -event.stop_ns


class _Place(NamedTuple):
    """The place of a row in a picture: rows are sorted by these fields, in their order."""

    group: int
    number: int
    """The number of the worker, or of the thread if it belongs to none; 0: it has no number."""
    process_id: int
    is_queue: bool
    """A queue is below the lane that fills it."""
    name: str
    row: int


def _place(row: LaneRow) -> _Place:
    is_queue = row.key.kind is LaneKind.QUEUE
    maker = row.key.of if is_queue and row.key.of else row.key
    is_shared = is_queue and maker.kind is LaneKind.NATIVE
    number = maker.number if maker.process.number is None else maker.process.number
    return _Place(
        group=OF_SHARED_QUEUE if is_shared else GROUPS.get(maker.process.kind, OTHERS),
        number=number or 0,
        process_id=row.process_id,
        is_queue=is_queue,
        name=row.key.name,
        row=row.number,
    )


def _queue_events(main: Sequence[Event], work: Sequence[Event]) -> list[Event]:
    """The time of each finished batch in a queue, as events in the lane of its maker's queue.

    The makers are workers, threads, or the native core. main: the events of the loop. work: the
    events of the makers.
    """
    arrivals = {event.batch: event for event in main if event.part is Part.WAIT}
    collated = [event for event in work if event.part is Part.COLLATE and event.batch in arrivals]
    queues = [_wait_in_queue(event, event.stop_ns, arrivals[event.batch]) for event in collated]
    return [*queues, *_native_queue(main, work, arrivals)]


def _wait_in_queue(made: Event, made_ns: int, arrival: Event) -> Event:
    """The event of a batch in its queue, from made_ns until the loop has the batch.

    made: an event of the lane that fills the queue. arrival: the loop's wait for the batch.
    """
    return replace(
        made,
        lane=made.lane.queue,
        part=Part.QUEUE,
        batch=arrival.batch,
        start_ns=made_ns,
        stop_ns=arrival.stop_ns,
    )


def _native_queue(
    main: Sequence[Event], work: Sequence[Event], arrivals: dict[int, Event]
) -> list[Event]:
    """The queue of FastLoader's native core. Any of its threads makes pieces of any batch.

    A piece has the number of its first batch. It may end in the middle of a batch, and then the
    next piece begins in this batch.
    """
    native = [event for event in work if event.lane.kind is LaneKind.NATIVE]
    if not native:
        return []
    # The loop's own thread makes pieces as well, while it waits.
    own = [event for event in main if event.part is native[0].part]
    made_ns: dict[int, int] = defaultdict(int)
    for piece in (*native, *own):
        made_ns[piece.batch] = max(made_ns[piece.batch], piece.stop_ns)
    firsts = sorted(made_ns)
    lane = replace(native[0], lane=LaneKey(LaneKind.NATIVE))
    queues = []
    for arrival in arrivals.values():
        # A batch is ready when the last of its pieces is made. The piece that begins in an earlier
        # batch may end in this one.
        before = max(0, bisect_left(firsts, arrival.batch) - 1)
        pieces = firsts[before : bisect_right(firsts, arrival.batch)]
        ready_ns = max((made_ns[first] for first in pieces), default=arrival.stop_ns)
        if ready_ns < arrival.stop_ns:
            queues.append(_wait_in_queue(lane, ready_ns, arrival))
    return queues
