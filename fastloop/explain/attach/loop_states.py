"""The state that the probe keeps for each DataLoader of a script's process, and for each pass."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.explain.attach.line_trace import LineTrace, begin_trace
from fastloop.explain.attach.usage_probe import PassUsage
from fastloop.observe.event_log import ThreadLog

LOADER_NUMBERS, PASS_NUMBERS = itertools.count(), itertools.count()
"""Counters that number the loaders of this process, and the passes over them."""


@dataclass
class LoaderState:
    """A DataLoader of this process."""

    number: int
    process_id: int
    made_at: str = ""
    """Path and line of the call that has made it; empty if it was made without the probe."""
    gives_workers: bool = False
    """True if that call passes num_workers."""
    is_described: bool = False
    is_replaced: bool = False
    """True if a library has made its own DataLoader from this one."""
    asked_ns: int = 0
    """Time of an iter() for which no pass has begun yet; 0: there is none."""


@dataclass
class PassState:
    """A pass of a loop over a DataLoader, and the step on its last batch."""

    number: int
    loader: LoaderState
    begun_ns: int
    """Time at which the beginning of the pass was recorded."""
    place: str
    earlier_passes: int
    """Number of earlier passes for which the iterator was reset, as with persistent workers."""
    first_pass: int
    """Number of the first pass after the iterator was made or reset: a class derived from
    DataLoader may keep its iterator, and go on with it in its next pass."""
    second_batch_at: int
    """Value of the iterator's _num_yielded when the loop asks for the second batch of this pass."""
    batch: int = UNKNOWN
    """Number of the batch that the loop has; UNKNOWN: it has none."""
    step_start_ns: int = 0
    """Time at which the loop got the batch."""
    step_start_cpu_ns: int = UNKNOWN
    """CPU time of the process at that moment; UNKNOWN: it is not read around this step."""
    usage: PassUsage = field(kw_only=True)
    line_trace: LineTrace | None = None
    """The trace of the step's lines; None: this step is not traced."""

    def begin_step(self, batch: int, start_ns: int, cpu_ns: int) -> None:
        """Note that the loop has the batch."""
        self.batch = batch
        self.step_start_ns = start_ns
        self.step_start_cpu_ns = cpu_ns
        self.line_trace = begin_trace(self.place)

    def end_step(self, here: ThreadLog, stop_ns: int, cpu_ns: int, *, has_inner_loop: bool) -> None:
        """Record the step, if there is one, as the loop asks for the next batch.

        has_inner_loop: True if this thread has run another loop in the step.
        """
        if self.batch == UNKNOWN:
            return
        if self.line_trace:
            fact = self.line_trace.end()
            self.line_trace = None
            if fact and not has_inner_loop:
                self.usage.log.add_fact(lines_of=self.number, **fact)
        if self.usage.is_begun:
            self.usage.end_part(self.number, has_inner_loop=has_inner_loop)
        start_cpu_ns = self.step_start_cpu_ns
        spent_ns = UNKNOWN if UNKNOWN in (cpu_ns, start_cpu_ns) else cpu_ns - start_cpu_ns
        here.add(Part.STEP, self.step_start_ns, stop_ns, self.batch, self.number, spent_ns)
        self.batch = UNKNOWN
