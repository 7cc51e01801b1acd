"""Find the lines of a script on which a loop's steps spend time, from traces of some steps."""

from __future__ import annotations

import linecache
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastloop.core.number_text import show_percent
from fastloop.core.text import printable
from fastloop.explain.attach.loop_passes import LoaderPass
from fastloop.explain.attach.recorded_processes import ProcessRecords

LEAST_LINE_SHARE = 0.2
"""Lines with a smaller share of the steps' time are not reported."""
MOST_REPORTED = 3
"""Maximum number of lines that are reported."""
WHOLE_SHARE = 0.8
"""A line with this share that calls a function of the script says little: the function's lines are
reported, too."""
LONGEST_CODE = 40
"""Characters of a line's code that are shown."""


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """A line of the script, and the time that steps spend on it, with all that it calls."""

    place: str
    """The name of its file, and its number."""
    code: str
    """The line itself; empty if its file can't be read."""
    share: float
    """Share of the steps' time."""

    @property
    def name(self) -> str:
        """The place, with the code in brackets."""
        is_long = len(self.code) > LONGEST_CODE
        code = f"{self.code[:LONGEST_CODE]}..." if is_long else self.code
        return f"{self.place} ({printable(code)})" if code else self.place


@dataclass(frozen=True, kw_only=True)
class StepLines:
    """The lines on which steps spend most time, each list with the longest line first."""

    of_loop: tuple[StepLine, ...] = ()
    """Lines of the function that has the loop."""
    of_called: tuple[StepLine, ...] = ()
    """Lines of the functions of the script that the lines of `of_loop` call."""

    @property
    def longest(self) -> StepLine | None:
        """The line of the loop with most time; None if its share is below LEAST_LINE_SHARE."""
        first = self.of_loop[0] if self.of_loop else None
        return first if first and first.share >= LEAST_LINE_SHARE else None

    def describe(self, place: str) -> str:
        """A sentence on the longest lines; empty if none is long. place: that of the loop."""
        # If a library has the loop, its call is a single line of the script, with all of the time.
        long = [each for each in self.of_loop if each.share >= LEAST_LINE_SHARE]
        outer = [each for each in long if each.place != place]
        inner = [each for each in self.of_called if each.share >= LEAST_LINE_SHARE][:MOST_REPORTED]
        reported = (outer or inner)[:MOST_REPORTED]
        if not reported:
            return ""
        first, *others = reported
        sentence = f"Its steps spend {show_percent(first.share)} of their time at {first.name}"
        if outer and first.share >= WHOLE_SHARE and inner:
            return f"{sentence}, and inside of it {_join(inner)}"
        return f"{sentence}, {_join(others)}" if others else sentence


def _join(lines: Sequence[StepLine]) -> str:
    return ", ".join(f"{show_percent(each.share)} at {each.name}" for each in lines)


def find_step_lines(passes: Sequence[LoaderPass], records: Sequence[ProcessRecords]) -> StepLines:
    """The lines of the steps of these passes."""
    wanted = {(each.process_id, each.number) for each in passes}
    facts = [
        fact
        for process in records
        for fact in process.facts
        if "lines_of" in fact and (process.process_id, fact["lines_of"]) in wanted
    ]
    return StepLines(of_loop=_lines(facts, "of_loop"), of_called=_lines(facts, "of_called"))


def _lines(steps: Sequence[Mapping[str, Any]], name: str) -> tuple[StepLine, ...]:
    # None: the trace was cut off, as the step ran too many lines.
    facts = [fact for fact in steps if fact[name] is not None]
    spent_ns: dict[tuple[str, int], int] = defaultdict(int)
    for fact in facts:
        for path, line, line_ns in fact[name]:
            spent_ns[path, line] += line_ns
    whole_ns = sum(fact["whole_ns"] for fact in facts)
    found = [
        StepLine(
            place=f"{os.path.basename(path)}:{line}",
            code=linecache.getline(path, line).strip(),
            share=line_ns / whole_ns,
        )
        for (path, line), line_ns in spent_ns.items()
    ]
    return tuple(sorted(found, key=lambda each: -each.share))
