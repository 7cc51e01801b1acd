"""The stage in which the batch was that a loop waited for, moment by moment.

In a process without workers that is what next() did. Of a worker it is what the worker that makes
the awaited batch did: that batch, or an earlier one of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastloop.core.explanation import Rung
from fastloop.explain.attach.passes import LoaderPass
from fastloop.explain.attach.reading import ProcessRecords, workers_of
from fastloop.explain.attach.records import Kind

STAGES = (Rung.DECODE, Rung.COLLATE, Rung.HAND_OFF, Rung.START_UP)
"""Columns of an attribution; a transform is part of decode until its share is known."""
DECODE, COLLATE, HAND_OFF, START_UP = range(4)
FAR_NS = 1 << 62


@dataclass(frozen=True)
class WorkerBatches:
    """The batches of one worker in one pass, in the order in which it made them."""

    rows: list[tuple[int, ...]]
    """(batch, start, collate's start, collate's stop, put's stop)"""
    starts: list[int]

    def split(self, batch_row: tuple[int, ...], start_ns: int, stop_ns: int) -> list[int]:
        """Nanoseconds of a wait for a batch of this worker, by stage."""
        split = [0] * len(STAGES)
        reached_ns = start_ns
        place = max(0, bisect_right(self.starts, start_ns) - 1)
        for row in self.rows[place:]:
            _, fetch_ns, collate_ns, collated_ns, put_ns = row
            is_first = row is self.rows[0]
            bounds = (
                (START_UP if is_first else HAND_OFF, fetch_ns),
                (DECODE, collate_ns),
                (COLLATE, collated_ns),
                (HAND_OFF, FAR_NS if row is batch_row else put_ns),
            )
            for stage, bound_ns in bounds:
                end_ns = min(bound_ns, stop_ns)
                if end_ns > reached_ns:
                    split[stage] += end_ns - reached_ns
                    reached_ns = end_ns
            if row is batch_row:
                break
        split[HAND_OFF] += stop_ns - reached_ns
        return split


def attribute_waits(each: LoaderPass, records: Sequence[ProcessRecords]) -> np.ndarray:
    """(batches, STAGES) nanoseconds of the waits of a pass."""
    split = _split_by_workers(each, records) if each.pids else _split_by_fetches(each)
    return np.array(split, np.int64).reshape(-1, len(STAGES))


def fetch_rows(each: LoaderPass, records: Sequence[ProcessRecords]) -> np.ndarray:
    """The rows of the batches that were fetched for a pass, by workers or by its own process."""
    if each.pids:
        rows = [process.of_kind(Kind.FETCH) for process in workers_of_pass(each, records)]
        found = np.concatenate(rows) if rows else np.empty((0, 10), np.int64)
        return found[found[:, 1] == each.passed]
    found = each.process.of_kind(Kind.FETCH)
    if not each.batches:
        return found[:0]
    first_ns, last_ns = each.wait_start_ns[0], each.wait_stop_ns[-1]
    return found[(found[:, 3] >= first_ns) & (found[:, 6] <= last_ns)]


def workers_of_pass(each: LoaderPass, records: Sequence[ProcessRecords]) -> list[ProcessRecords]:
    """The workers of a pass."""
    # of persistent workers, the iterator was made in an earlier pass
    after_ns = 0 if each.passed else each.start_ns
    before_ns = each.wait_stop_ns[-1] if each.wait_stop_ns else each.start_ns + each.iter_ns
    return list(workers_of(records, each.pids, after_ns, before_ns))


def _split_by_workers(each: LoaderPass, records: Sequence[ProcessRecords]) -> list[list[int]]:
    maker: dict[int, tuple[WorkerBatches, tuple[int, ...]]] = {}
    for process in workers_of_pass(each, records):
        found = process.of_kind(Kind.FETCH)
        kept = found[found[:, 1] == each.passed][:, 2:7]
        rows = [tuple(row) for row in kept.tolist()]
        worker = WorkerBatches(rows, [row[1] for row in rows])
        maker |= {row[0]: (worker, row) for row in rows}
    split = []
    for batch, start_ns, stop_ns in zip(
        each.batches, each.wait_start_ns, each.wait_stop_ns, strict=True
    ):
        if batch in maker:
            worker, row = maker[batch]
            split.append(worker.split(row, start_ns, stop_ns))
        else:
            split.append([0, 0, stop_ns - start_ns, 0])
    return split


def _split_by_fetches(each: LoaderPass) -> list[list[int]]:
    fetches = each.process.of_kind(Kind.FETCH)[:, 3:7]
    starts = fetches[:, 0]
    split = []
    for start_ns, stop_ns in zip(each.wait_start_ns, each.wait_stop_ns, strict=True):
        place = int(np.searchsorted(starts, start_ns))
        row = fetches[place].tolist() if place < len(starts) else None
        if row is None or row[3] > stop_ns:
            split.append([0, 0, stop_ns - start_ns, 0])
            continue
        fetch_ns, collate_ns, collated_ns, _ = row
        decode, collate = collate_ns - fetch_ns, collated_ns - collate_ns
        split.append([decode, collate, stop_ns - start_ns - decode - collate, 0])
    return split
