"""Time the lines of a script in a few steps of a loop, by Python's trace function (sys.settrace).

Two levels are timed: the lines of the function that has the loop, and those of the first function
of the script that one of these lines calls, perhaps through a library.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from functools import cache
from threading import get_ident
from types import FrameType
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.explain.attach.library_files import is_library
from fastloop.explain.attach.loader_places import frame_in_script, is_probe

TRACED_FIRST = 5
"""The steps of a loop from the second one to this one are traced, and then each step whose number
is a power of two. The first step is not traced, because it also loads libraries."""
MOST_LINES = 2000
"""Maximum number of lines of a step that are timed on each level, as each of them costs a
microsecond."""
MOST_LEFT = 2
"""Maximum number of returns that the trace follows, from the function that asks for batches to the
function that contains the step."""
FREE_CALLS, CALL_NS, MOST_SHARE = 2000, 500, 0.1
"""Python reports each call of a traced step, which takes CALL_NS. After FREE_CALLS of them, the
trace ends early if the reports have taken a greater share of the step than MOST_SHARE."""
MOST_NS = 10_000_000_000
"""A trace ends early after this time, as the script may have left the loop by `break`."""
LEAST_SHARE = 0.05
"""Lines with a smaller share of the step are not written."""
COMPILED_CALL = "_TorchDynamoContext.__call__."
"""Beginning of the qualified name of the function through which torch.compile's code is called."""
Line = tuple[str, int]
"""The path of a file, and the number of a line."""

STEP_COUNTS: Counter[str] = Counter()
"""Number of steps so far by the place of their loop."""


def begin_trace(place: str) -> LineTrace | None:
    """Begin to trace a step of the loop at that place; None if the step is not to be traced."""
    STEP_COUNTS[place] += 1
    count = STEP_COUNTS[place]
    present = sys.gettrace()
    # The thread has left the loop of that trace by `break`, or this loop is a part of its step.
    if trace := _trace_of(present):
        trace.stop()
    if count == 1 or (count > TRACED_FIRST and count & (count - 1)):
        return None
    # Any other trace function is that of a debugger, for example.
    is_free = trace is not None or present is None
    frame = frame_in_script() if is_free and not _has_compiled() else None
    if frame is None:
        return None
    begun = LineTrace(frame)
    begun.begin()
    return begun


def _has_compiled() -> bool:
    """True if torch.compile has compiled code of this process. Beside a trace function it would
    compile that code again."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    # Another thread may be importing the module right now.
    counters = getattr(dynamo, "counters", None) or {}
    return bool(counters.get("frames") or counters.get("stats"))


class LineTimes:
    """Adds up the time of each line, from its start to the start of the line that runs next."""

    def __init__(self) -> None:
        self.spent_ns: defaultdict[Line, int] = defaultdict(int)
        self.line: Line | None = None
        self.since_ns = self.count = 0

    def reach(self, frame: FrameType | None) -> None:
        """Note that the frame begins its present line; None: no line goes on."""
        reached_ns = now_ns()
        self.count += 1
        if self.line:
            self.spent_ns[self.line] += reached_ns - self.since_ns
        self.line = (frame.f_code.co_filename, frame.f_lineno) if frame else None
        self.since_ns = reached_ns

    @property
    def is_full(self) -> bool:
        """True if no further line is timed."""
        return self.count > MOST_LINES

    def longest(self, whole_ns: int) -> list[tuple[str, int, int]]:
        """Path, number and nanoseconds of each line that takes at least LEAST_SHARE of whole_ns."""
        return [
            (os.path.abspath(path), line, spent_ns)
            for (path, line), spent_ns in self.spent_ns.items()
            if spent_ns >= LEAST_SHARE * whole_ns
        ]


class LineTrace:
    """The trace of one step, in the thread that has begun it."""

    def __init__(self, frame: FrameType) -> None:
        """frame: of the function that has the loop."""
        self.start_ns = now_ns()
        self.thread = get_ident()
        self.is_on = True
        self.loop = LineTimes()
        self.called = LineTimes()
        self.frame: FrameType | None = frame
        self.num_left = 0
        """Number of functions that were left since the trace began."""
        self.num_calls = 0
        """Number of calls that Python has reported."""
        self.inner: FrameType | None = None
        """The frame of the function of the script that a line of the loop has called."""

    def begin(self) -> None:
        """Set Python's trace functions, of this thread and of the frame."""
        assert self.frame is not None
        self.loop.reach(self.frame)
        self.frame.f_trace = self.follow_loop
        sys.settrace(self.follow_call)

    def end(self) -> dict[str, Any] | None:
        """End the trace; the times of the step and of its longest lines, as a fact.

        None if the trace has ended before the step: a part of its time was not timed.
        """
        was_on = self.is_on
        self.stop()
        if not was_on:
            return None
        whole_ns = now_ns() - self.start_ns
        return {
            "whole_ns": whole_ns,
            "of_loop": self.loop.longest(whole_ns),
            # If some lines are missing, the others need not be the longest ones.
            "of_called": None if self.called.is_full else self.called.longest(whole_ns),
        }

    def follow_call(self, frame: FrameType, event: str, _: Any) -> Any:  # noqa: ARG002
        """Python's trace function of calls: the trace function of the lines of this call."""
        self.num_calls += 1
        spent_ns = now_ns() - self.start_ns
        is_slowed = self.num_calls > FREE_CALLS and CALL_NS * self.num_calls > MOST_SHARE * spent_ns
        is_late = is_slowed or spent_ns > MOST_NS
        # torch.compile would compile this code now, and again after the trace has ended.
        is_compiled = frame.f_code.co_qualname.startswith(COMPILED_CALL)
        # Another thread may have ended the trace; only this one can remove its trace function.
        if is_late or is_compiled or not self.is_on:
            self.stop()
            return None
        if self.inner is not None or frame is self.frame or self.called.is_full:
            return None
        if not _is_of_script(frame.f_code.co_filename):
            return None
        self.inner = frame
        self.called.reach(frame)
        return self.follow_called

    def follow_loop(self, frame: FrameType, event: str, _: Any) -> Any:
        """The trace function of the function that has the loop."""
        if event == "line":
            self.loop.reach(frame)
        if event == "return" and self.is_on:
            frame.f_trace = None
            self._follow_caller(frame.f_back)
        elif self.loop.is_full or not self.is_on:
            self.stop()
            frame.f_trace = None
        return frame.f_trace

    def _follow_caller(self, caller: FrameType | None) -> None:
        """Go on with the caller of the function that is left."""
        # The script may ask for batches in a function or a generator of its own, so that the step
        # is in its caller. Or the loop was left by a `return`.
        is_far = self.num_left == MOST_LEFT
        if caller is None or is_far or not _is_of_script(caller.f_code.co_filename):
            self.stop()
            return
        self.num_left += 1
        self.frame = caller
        self.loop.reach(caller)
        caller.f_trace = self.follow_loop

    def follow_called(self, frame: FrameType, event: str, _: Any) -> Any:
        """The trace function of a function that a line of the loop calls."""
        if event == "line":
            self.called.reach(frame)
        if event == "return" or self.called.is_full or not self.is_on:
            self.called.reach(None)
            self.inner = frame.f_trace = None
        return frame.f_trace

    def stop(self) -> None:
        """Remove the trace functions."""
        if self.is_on:
            self.is_on = False
            self.loop.reach(None)
            self.called.reach(None)
        if get_ident() != self.thread:
            return
        # The script may have set a trace function of its own meanwhile.
        if sys.gettrace() == self.follow_call:
            sys.settrace(None)
        for frame in (self.frame, self.inner):
            # A debugger that was begun meanwhile has a trace function of its own there.
            if frame is not None and _trace_of(frame.f_trace) is self:
                frame.f_trace = None
        self.frame = self.inner = None


@cache
def _is_of_script(path: str) -> bool:
    """True for a file of the script's own code."""
    return not (path.startswith("<") or is_library(path) or is_probe(path))


def _trace_of(function: Any) -> LineTrace | None:
    """The trace that this trace function belongs to."""
    owner = getattr(function, "__self__", None)
    return owner if isinstance(owner, LineTrace) else None


def _stop_in_child() -> None:
    """End the trace in a process that was forked during a step, such as a worker."""
    if trace := _trace_of(sys.gettrace()):
        trace.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)
