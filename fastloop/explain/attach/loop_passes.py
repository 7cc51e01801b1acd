"""Find the passes over a script's DataLoaders: the wait for each batch, and the step on it.

A pass is one iteration over a DataLoader, such as an epoch. An event is a recorded piece of work or
of waiting. A fact is a dict that a process has recorded about a DataLoader or a pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.explain.attach.recorded_processes import ProcessRecords
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LaneKey
from fastloop.observe.lanes import flatten

OF_LOOPS = (Part.START, Part.WAIT, Part.STEP, Part.END)
"""The parts of the loop's own events; all other events are those of making or pinning batches."""


@dataclass(kw_only=True)
class LoaderPass:
    """A pass of a loop over a DataLoader.

    Each list, except `own_events`, has an entry for each batch. All times are in nanoseconds.
    """

    number: int
    """Number of the pass in its process."""
    loader: int
    """Number of the DataLoader in its process."""
    process_id: int
    """Id of the loop's process."""
    lane: LaneKey
    """Lane (the recorded work) of the thread that calls next()."""
    start_ns: int
    """Time at which iter() was called, which starts the workers."""
    iter_ns: int
    """Duration of iter()."""
    place: str
    """File and line of the script that asks for the batches."""
    iterator_made_ns: int
    """Earliest time at which a batch of this pass may have been made. Several passes may go on with
    an iterator that is not reset: then this is the start of the first of these passes."""
    earlier_passes: int
    """Number of times that the DataLoader has reset its iterator for a new pass, up to this pass.
    It does so if its workers are persistent."""
    pids: tuple[int, ...]
    """Process ids of the workers; empty if there are none."""
    batches: list[int] = field(default_factory=list)
    """Numbers by which the workers know the batches."""
    wait_start_ns: list[int] = field(default_factory=list)
    """Time at which the loop asked for the batch."""
    wait_stop_ns: list[int] = field(default_factory=list)
    """Time at which the loop got the batch."""
    step_ns: list[int] = field(default_factory=list)
    """Time from the arrival of the batch until the loop asks for the next one. The time of inner
    loops is left out."""
    step_cpu_ns: list[int] = field(default_factory=list)
    """CPU time of the process in the step; UNKNOWN if it was not read, or if the step contains an
    inner loop."""
    end_ns: int = 0
    """Duration of the call of next() that found no more batches."""
    stop_ns: int = 0
    """The last time at which the loop asked for a batch, or found none."""
    own_events: list[Event] = field(default_factory=list)
    """Events of the pass, without the time of inner loops."""
    covered_ns: int = 0
    """Time between start and stop that events of this pass, or of inner loops, cover."""

    @property
    def waits(self) -> Iterator[tuple[int, int, int]]:
        """The wait for each batch: the number of the batch, start and stop in nanoseconds."""
        return zip(self.batches, self.wait_start_ns, self.wait_stop_ns, strict=True)

    @property
    def maker_pids(self) -> tuple[int, ...]:
        """Ids of the processes that make the batches: the workers, or else the loop's process."""
        return self.pids or (self.process_id,)

    @property
    def number_by_makers(self) -> int:
        """Number of this pass in the records of the processes that make its batches."""
        # A worker knows only the number of epochs that it has finished, and records this number.
        # The loop's own process records the number of the pass.
        return self.earlier_passes if self.pids else self.number


def find_passes(process: ProcessRecords) -> list[LoaderPass]:
    """The passes of a process, in order; a batch is left out if the step on it has not ended.

    Passes without batches are left out.
    """
    # If the loop neither asks for another batch nor ends, no record shows when the step on its last
    # batch has ended.
    begun = describe_passes(process)
    by_lane: dict[LaneKey, list[Event]] = defaultdict(list)
    passes: dict[int, LoaderPass] = {}
    for event in process.events:
        if event.part in OF_LOOPS and event.pass_number in begun:
            by_lane[event.lane].append(event)
            if event.part is Part.START:
                fact = begun[event.pass_number]
                earlier = passes.get(fact["first_pass"])
                passes[event.pass_number] = _begin(event, fact, earlier)
    # Only events of the same thread nest. next() may be called in another thread than iter().
    for events in by_lane.values():
        _add_batches(passes, events)
    return [each for each in passes.values() if each.batches]


def is_about_loader(fact: Mapping[str, Any]) -> bool:
    """True if the fact describes a DataLoader over which a loop has begun."""
    return "start_method" in fact


def is_about_pass(fact: Mapping[str, Any]) -> bool:
    """True if the fact describes a pass that has begun, or corrects the place of a pass."""
    return "pass_number" in fact


def describe_loaders(process: ProcessRecords) -> dict[int, dict[str, Any]]:
    """Number of a DataLoader of the process -> the facts about it."""
    loaders: dict[int, dict[str, Any]] = {}
    for fact in process.facts:
        if is_about_loader(fact):
            loaders[fact["loader"]] = dict(fact)
        # This fact has the length of the dataset. It is written when a sampler asks for the length,
        # in a fork also for a DataLoader of the parent.
        elif "num_samples" in fact and fact["loader"] in loaders:
            loaders[fact["loader"]] |= fact
    return loaders


def describe_passes(process: ProcessRecords) -> dict[int, dict[str, Any]]:
    """Number of a pass that has begun in the process -> the facts about it."""
    begun: dict[int, dict[str, Any]] = defaultdict(dict)
    # A later fact may correct the place of a pass.
    for fact in process.facts:
        if is_about_pass(fact):
            begun[fact["pass_number"]] |= fact
    return begun


def _begin(start: Event, fact: dict[str, Any], earlier: LoaderPass | None) -> LoaderPass:
    """The pass that begins with the event `start`, still without batches.

    earlier: the first of the passes that go on with this iterator without a reset; None: this pass
    is the first.
    """
    return LoaderPass(
        number=start.pass_number,
        loader=fact["loader"],
        process_id=start.process_id,
        lane=start.lane,
        start_ns=start.start_ns,
        iter_ns=start.stop_ns - start.start_ns,
        place=fact["place"],
        iterator_made_ns=earlier.start_ns if earlier else start.start_ns,
        earlier_passes=fact["earlier_passes"],
        pids=tuple(fact["pids"]),
        stop_ns=start.stop_ns,
    )


def _add_batches(passes: dict[int, LoaderPass], events: Sequence[Event]) -> None:
    """Add the batches of all loops of a thread to their passes.

    passes: number of a pass -> the pass. events: the loop events of one thread.
    """
    steps_ns: dict[tuple[int, int], int] = defaultdict(int)
    # A step may contain inner loops, such as a validation. flatten() cuts their time out of it.
    pieces = flatten(events)
    for piece in pieces:
        if loop_pass := passes.get(piece.pass_number):
            loop_pass.own_events.append(piece)
        if piece.part is Part.STEP:
            steps_ns[piece.pass_number, piece.batch] += piece.stop_ns - piece.start_ns
    waits = {(each.pass_number, each.batch): each for each in events if each.part is Part.WAIT}
    for event in events:
        loop_pass = passes.get(event.pass_number)
        key = (event.pass_number, event.batch)
        if loop_pass is None:
            continue
        if event.part is Part.STEP and key in waits:
            _add_batch(loop_pass, waits[key], event, steps_ns[key])
        if event.part is Part.END:
            loop_pass.end_ns = event.stop_ns - event.start_ns
            loop_pass.stop_ns = event.stop_ns
    numbers = {number for number, _ in waits}
    _add_coverage([passes[number] for number in numbers if number in passes], pieces)


def _add_coverage(passes: Iterable[LoaderPass], pieces: Sequence[Event]) -> None:
    """Set `covered_ns` of the passes of a thread.

    pieces: events of the thread, cut into pieces that don't overlap, in order of time.
    """
    # A script may have many passes and events, so running sums of the pieces are used. iter() is
    # added separately, because it may have run in another thread.
    starts = [piece.start_ns for piece in pieces]
    reached = [0, *accumulate(piece.stop_ns - piece.start_ns for piece in pieces)]
    for each in passes:
        begin = bisect_left(starts, each.start_ns + each.iter_ns)
        end = bisect_left(starts, each.stop_ns)
        each.covered_ns = each.iter_ns + reached[end] - reached[begin]


def _add_batch(loop_pass: LoaderPass, wait: Event, step: Event, step_ns: int) -> None:
    """Add a batch to its pass.

    wait, step: the events of the batch. step_ns: time of the step without inner loops.
    """
    loop_pass.lane = wait.lane
    loop_pass.batches.append(wait.batch)
    loop_pass.wait_start_ns.append(wait.start_ns)
    loop_pass.wait_stop_ns.append(wait.stop_ns)
    loop_pass.step_ns.append(step_ns)
    # The CPU time of a step includes the loops inside of it, so it is unknown if there are any.
    has_inner_loop = step_ns != step.stop_ns - step.start_ns
    loop_pass.step_cpu_ns.append(UNKNOWN if has_inner_loop else step.cpu_ns)
    loop_pass.stop_ns = step.stop_ns
