"""Passes of a script's loops over its DataLoaders: the wait for each batch, and the step on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastloop.explain.attach.reading import ProcessRecords
from fastloop.timeline.events import UNKNOWN, Event, Stage
from fastloop.timeline.lanes import flatten

OF_LOOPS = (Stage.START, Stage.WAIT, Stage.STEP, Stage.END)


@dataclass(kw_only=True)
class LoaderPass:
    """A pass of a loop over a DataLoader; all lists have an entry for each batch."""

    number: int
    loader: int
    process_id: int
    lane: str
    start_ns: int
    """When iter() was called, which started the workers."""
    iter_ns: int
    """Time that iter() took."""
    passed: int
    """Passes over the same iterator before, as with persistent workers."""
    pids: tuple[int, ...]
    batches: list[int] = field(default_factory=list)
    """Numbers as the workers know them."""
    wait_start_ns: list[int] = field(default_factory=list)
    wait_stop_ns: list[int] = field(default_factory=list)
    step_ns: list[int] = field(default_factory=list)
    """From a batch's arrival until the loop asks for the next, without the loops inside of it."""
    step_cpu_ns: list[int] = field(default_factory=list)
    """CPU time of the process in the step, where it is known, else UNKNOWN."""
    end_ns: int = 0
    """Time of the next() that found no more batches."""
    stop_ns: int = 0
    """When the loop asked for a batch last, or found none."""


def find_passes(process: ProcessRecords) -> list[LoaderPass]:
    """The passes that a process has made, in order; without batches on which no step has ended, as
    who knows what the script did from then on."""
    begun = {fact["iteration"]: fact for fact in process.facts if "iteration" in fact}
    by_lane: dict[str, list[Event]] = defaultdict(list)
    for event in process.events:
        if event.name in OF_LOOPS and event.epoch in begun:
            by_lane[event.lane].append(event)
    passes = [each for events in by_lane.values() for each in _passes_of_thread(events, begun)]
    return sorted((each for each in passes if each.batches), key=lambda each: each.number)


def describe_loaders(process: ProcessRecords) -> dict[int, dict[str, Any]]:
    """The facts about each DataLoader of a process, by its number."""
    return {fact["loader"]: fact for fact in process.facts if "type" in fact}


def _passes_of_thread(
    events: Sequence[Event], begun: dict[int, dict[str, Any]]
) -> Iterable[LoaderPass]:
    steps_ns: dict[tuple[int, int], int] = defaultdict(int)
    for piece in flatten(events):
        if piece.name is Stage.STEP:
            steps_ns[piece.epoch, piece.batch] += piece.stop_ns - piece.start_ns
    by_pass: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_pass[event.epoch].append(event)
    for number, own in by_pass.items():
        if own[0].name is Stage.START:
            yield _build_pass(own, begun[number], steps_ns)


def _build_pass(
    events: Sequence[Event], fact: dict[str, Any], steps_ns: dict[tuple[int, int], int]
) -> LoaderPass:
    start = events[0]
    found = LoaderPass(
        number=start.epoch,
        loader=fact["loader"],
        process_id=start.process_id,
        lane=start.lane,
        start_ns=start.start_ns,
        iter_ns=start.stop_ns - start.start_ns,
        passed=fact["passed"],
        pids=tuple(fact["pids"]),
        stop_ns=start.stop_ns,
    )
    waits = {event.batch: event for event in events if event.name is Stage.WAIT}
    for event in events:
        if event.name is Stage.STEP and event.batch in waits:
            _add_batch(found, waits[event.batch], event, steps_ns[event.epoch, event.batch])
        if event.name is Stage.END:
            found.end_ns, found.stop_ns = event.stop_ns - event.start_ns, event.stop_ns
    return found


def _add_batch(found: LoaderPass, wait: Event, step: Event, step_ns: int) -> None:
    found.batches.append(wait.batch)
    found.wait_start_ns.append(wait.start_ns)
    found.wait_stop_ns.append(wait.stop_ns)
    found.step_ns.append(step_ns)
    is_alone = step_ns == step.stop_ns - step.start_ns  # no other loop ran inside of it
    found.step_cpu_ns.append(step.cpu_ns if is_alone else UNKNOWN)
    found.stop_ns = step.stop_ns
