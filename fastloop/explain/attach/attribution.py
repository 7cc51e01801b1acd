"""Split the wait for a batch among the parts of making it.

Each moment of a wait belongs to the part of the work that went on for the awaited batch. Without
workers, that is the work inside of next(). With workers, it is the work of the worker that makes
the awaited batch: on this batch, or on an earlier one of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastloop.core.parts import Part
from fastloop.explain.attach.loop_passes import OF_LOOPS, LoaderPass
from fastloop.explain.attach.recorded_processes import MadeBatch, ProcessRecords, batches_of_process
from fastloop.observe.event_log import Event

WAIT_PARTS = (Part.DECODE, Part.COLLATE, Part.HAND_OFF, Part.START_UP)
"""The parts of a wait, which are the columns of an attribution. Transforms count as decode here;
loops.py finds their share later."""
DECODE, COLLATE, HAND_OFF, START_UP = range(4)
"""Places of the columns."""


@dataclass(frozen=True)
class WorkerBatches:
    """The batches of one worker in one pass, in the order in which it made them."""

    made: list[MadeBatch]

    def split(self, awaited: MadeBatch, start_ns: int, stop_ns: int) -> list[int]:
        """Nanoseconds of a wait for a batch of this worker, by part."""
        split = [0] * len(WAIT_PARTS)
        # All of the wait before reached_ns is in `split`.
        reached_ns = start_ns
        # Begin with the batch on which the worker was busy when the wait began.
        place = bisect_right(self.made, start_ns, key=lambda each: each.start_ns) - 1
        for each in self.made[max(0, place) :]:
            is_first = each is self.made[0]
            # A worker that is idle before a batch waits for its indices, which is hand-off; before
            # its first batch it is starting.
            bounds = (
                (START_UP if is_first else HAND_OFF, each.start_ns),
                (DECODE, each.collate_ns),
                (COLLATE, each.stop_ns),
            )
            for column, bound_ns in bounds:
                end_ns = min(bound_ns, stop_ns)
                if end_ns > reached_ns:
                    split[column] += end_ns - reached_ns
                    reached_ns = end_ns
            if each is awaited:
                break
        # The batch was ready: it was pickled, sent, pinned or waited for its turn.
        split[HAND_OFF] += stop_ns - reached_ns
        return split


def attribute_waits(loop_pass: LoaderPass, makers: Sequence[WorkerBatches]) -> np.ndarray:
    """Nanoseconds of the waits of a pass, int64 (batches, WAIT_PARTS)."""
    split = _split_by_workers if loop_pass.pids else _split_by_fetches
    return np.array(split(loop_pass, makers), np.int64).reshape(-1, len(WAIT_PARTS))


def makers_of_pass(loop_pass: LoaderPass, records: Sequence[ProcessRecords]) -> list[WorkerBatches]:
    """The batches of a pass by the worker that has made them; without workers, by the loop's own
    process."""
    return [
        WorkerBatches(batches_of_process(making_events(loop_pass, process)))
        for process in records
        if process.process_id in loop_pass.maker_pids
    ]


def making_events(loop_pass: LoaderPass, process: ProcessRecords) -> list[Event]:
    """The events of a process that made batches for the pass."""
    # The times tell two workers apart that had the same process id, one after the other. Passes
    # that go on with one kept iterator share a number; the numbers of the batches tell them apart.
    return [
        event
        for event in process.by_pass.get(loop_pass.number_by_makers, ())
        if event.part not in OF_LOOPS
        and loop_pass.iterator_made_ns <= event.start_ns <= loop_pass.stop_ns
        and (
            loop_pass.iterator_made_ns == loop_pass.start_ns or event.batch >= loop_pass.batches[0]
        )
        and (loop_pass.pids or event.lane == loop_pass.lane)
    ]


def time_behind_order(loop_pass: LoaderPass, makers: Sequence[WorkerBatches]) -> int:
    """Nanoseconds of the waits of a pass in which a later batch than the awaited one was ready."""
    ready = {made.batch: made.stop_ns for worker in makers for made in worker.made}
    numbers = sorted(ready)
    # `first` has, for each batch, the earliest time at which any later batch was ready: a running
    # minimum from the last batch backwards, shifted by one place.
    stops = np.array([ready[number] for number in numbers], np.int64)
    first = dict(zip(numbers, np.minimum.accumulate(stops[::-1])[-2::-1], strict=False))
    return sum(
        max(0, stop_ns - max(start_ns, int(first[batch])))
        for batch, start_ns, stop_ns in loop_pass.waits
        if batch in first
    )


def _split_by_workers(loop_pass: LoaderPass, makers: Sequence[WorkerBatches]) -> list[list[int]]:
    found = {made.batch: (worker, made) for worker in makers for made in worker.made}
    split = []
    for batch, start_ns, stop_ns in loop_pass.waits:
        if batch in found:
            worker, made = found[batch]
            split.append(worker.split(made, start_ns, stop_ns))
        else:
            # Nothing was recorded of this batch, for example because its worker's log was full.
            split.append([0, 0, stop_ns - start_ns, 0])
    return split


def _split_by_fetches(loop_pass: LoaderPass, makers: Sequence[WorkerBatches]) -> list[list[int]]:
    found = {made.batch: made for maker in makers for made in maker.made}
    split = []
    for batch, start_ns, stop_ns in loop_pass.waits:
        made = found.get(batch)
        decode = collate = 0
        if made:
            decode, collate = made.collate_ns - made.start_ns, made.stop_ns - made.collate_ns
        split.append([decode, collate, stop_ns - start_ns - decode - collate, 0])
    return split
