"""Passes of a script's loops over its DataLoaders: the wait for each batch, and the step on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastloop.explain.attach.reading import ProcessRecords
from fastloop.explain.attach.records import END, Kind


@dataclass(kw_only=True)
class LoaderPass:
    """A pass of a loop over a DataLoader; all lists have an entry for each batch."""

    number: int
    loader: int
    process: ProcessRecords
    start_ns: int
    """When iter() was called, which started the workers."""
    iter_ns: int
    """Time that iter() took."""
    passed: int
    """Passes over the same iterator before, as with persistent workers."""
    thread: int
    pids: tuple[int, ...] = ()
    batches: list[int] = field(default_factory=list)
    """Numbers as the workers know them."""
    wait_start_ns: list[int] = field(default_factory=list)
    wait_stop_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    """From a batch's arrival until the loop asks for the next, without other loops' waits."""
    step_cpu_ns: list[int] = field(default_factory=list)
    """CPU time of the process in the step, where it was read before and after, else -1."""
    end_ns: int = 0
    """Time of the next() that found no more batches."""
    has_end: bool = False
    totals: list[tuple[int, int, int]] = field(default_factory=list)
    """Batches, nanoseconds, and of these nanoseconds in next(), of batches without records."""


def find_passes(process: ProcessRecords) -> list[LoaderPass]:
    """The passes that a process has made, in order; without those of a single batch that was not
    followed by another call of next()."""
    passes = {row[1]: _begin(process, row) for row in process.of_kind(Kind.ITERATION).tolist()}
    for fact in process.facts:
        if fact.get("iteration") in passes:
            passes[fact["iteration"]].pids = tuple(fact["pids"])
    by_thread: dict[int, list[Sequence[int]]] = defaultdict(list)
    kinds = (Kind.ITERATION, Kind.NEXT, Kind.TOTAL)
    for row in process.rows[np.isin(process.rows[:, 0], kinds)].tolist():
        if row[1] in passes:
            by_thread[passes[row[1]].thread].append(row)
    for rows in by_thread.values():
        _Walk(passes).follow(sorted(rows, key=lambda row: row[3]))
    complete = [_without_open_end(each) for each in passes.values()]
    return [each for each in complete if each.batches or each.totals]


def describe_loaders(process: ProcessRecords) -> dict[int, dict[str, Any]]:
    """The facts about each DataLoader of a process, by its number."""
    return {fact["loader"]: fact for fact in process.facts if "type" in fact}


def _begin(process: ProcessRecords, row: Sequence[int]) -> LoaderPass:
    _, number, loader, start_ns, stop_ns, passed, thread, *_ = row
    return LoaderPass(
        number=number,
        loader=loader,
        process=process,
        start_ns=start_ns,
        iter_ns=stop_ns - start_ns,
        passed=passed,
        thread=thread,
    )


def _without_open_end(each: LoaderPass) -> LoaderPass:
    """The pass without its last batch, if the loop did not ask for another: who knows what the
    script did from then on."""
    if not each.has_end and each.batches:
        for values in (each.batches, each.wait_start_ns, each.wait_stop_ns):
            values.pop()
        each.step_ns.pop()
        each.step_cpu_ns.pop()
    return each


class _Walk:
    """A thread's calls of iter() and next() in order; the time between belongs to a step."""

    def __init__(self, passes: dict[int, LoaderPass]) -> None:
        self.passes = passes
        self.open: list[LoaderPass] = []
        """Loops that have begun, inner ones last."""
        self.reached_ns = 0
        self.cpu_ns = -1

    def follow(self, rows: Iterable[Sequence[int]]) -> None:
        """Add the rows to their passes."""
        for row in rows:
            kind, number, batch, start_ns, stop_ns, cpu_ns, stop_cpu_ns = row[:7]
            self._add_step(start_ns)
            if kind == Kind.NEXT:
                self._add_cpu(self.passes[number], cpu_ns)
                self._enter(self.passes[number])
                self._add_next(self.passes[number], batch, start_ns, stop_ns)
                self.cpu_ns = stop_cpu_ns
            elif kind == Kind.TOTAL:
                self.passes[number].totals.append((batch, stop_ns - start_ns, cpu_ns))
            self.reached_ns = stop_ns

    def _add_step(self, until_ns: int) -> None:
        if self.open and self.open[-1].batches:
            self.open[-1].step_ns[-1] += max(0, until_ns - self.reached_ns)

    def _add_cpu(self, each: LoaderPass, cpu_ns: int) -> None:
        if self.open and self.open[-1] is each and min(cpu_ns, self.cpu_ns) >= 0 and each.batches:
            each.step_cpu_ns[-1] = cpu_ns - self.cpu_ns

    def _enter(self, each: LoaderPass) -> None:
        """Make it the innermost loop; those inside of it were left."""
        if each in self.open:
            while self.open[-1] is not each:
                self.open.pop()
        else:
            self.open.append(each)

    def _add_next(self, each: LoaderPass, batch: int, start_ns: int, stop_ns: int) -> None:
        if batch == END:
            each.end_ns += stop_ns - start_ns
            each.has_end = True
            self.open.pop()
            return
        each.batches.append(batch)
        each.wait_start_ns.append(start_ns)
        each.wait_stop_ns.append(stop_ns)
        each.step_ns.append(0)
        each.step_cpu_ns.append(-1)
