"""Queues, derived from other events: each batch from its completion until the loop has it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fastloop.core.parts import Part
from fastloop.observe.events import NATIVE_LANE, QUEUE_LANE, UNKNOWN, WORKER, Event


def queue_events(main: Sequence[Event], work: Sequence[Event]) -> list[Event]:
    """The events of queues, with a lane for each worker, thread or native core.

    main: the events of the loop; work: all others, with the loop's numbers of batches.
    """
    arrivals = {event.batch: event for event in main if event.name is Part.WAIT}
    collated = [event for event in work if event.name is Part.COLLATE and event.batch in arrivals]
    queues = [_wait_in_queue(event, event.stop_ns, arrivals[event.batch]) for event in collated]
    return [*queues, *_native_queue(main, work, arrivals)]


def _wait_in_queue(made: Event, made_ns: int, arrival: Event) -> Event:
    """A batch's time in its queue."""
    maker = made.lane.removeprefix(WORKER).strip()
    return replace(
        made,
        lane=f"{QUEUE_LANE} {maker}",
        name=Part.QUEUE,
        batch=arrival.batch,
        start_ns=made_ns,
        stop_ns=arrival.stop_ns,
    )


def _native_queue(
    main: Sequence[Event], work: Sequence[Event], arrivals: dict[int, Event]
) -> list[Event]:
    """The batches of FastLoader's native core, in which any thread makes pieces of any batch.

    A piece has the number of its first batch, and ends in the batch with which the next one begins.
    """
    native = [event for event in work if event.lane.startswith(NATIVE_LANE)]
    if not native:
        return []
    # The loop's own thread makes pieces as well, while it waits.
    own = [event for event in main if event.name is native[0].name and event.epoch != UNKNOWN]
    made_ns: dict[int, int] = defaultdict(int)
    for piece in (*native, *own):
        made_ns[piece.batch] = max(made_ns[piece.batch], piece.stop_ns)
    firsts, lane = sorted(made_ns), replace(native[0], lane=NATIVE_LANE)
    queues = []
    for arrival in arrivals.values():
        # A batch is ready with the last of its pieces; the piece before may end in it.
        before = max(0, bisect_left(firsts, arrival.batch) - 1)
        pieces = firsts[before : bisect_right(firsts, arrival.batch)]
        ready_ns = max((made_ns[first] for first in pieces), default=arrival.stop_ns)
        if ready_ns < arrival.stop_ns:
            queues.append(_wait_in_queue(lane, ready_ns, arrival))
    return queues
