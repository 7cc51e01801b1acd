"""Describe the outcome of `fastloop check against=`, which compares two versions of the code.

`describe_versions` writes the text for a terminal, `versions_markdown` the comment for a pull
request.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.number_text import show_time, unit_of_all
from fastloop.core.result import Result, outcome
from fastloop.reporting.check_verdict import CheckStatus
from fastloop.reporting.comparison import CostChange
from fastloop.reporting.comparison_text import (
    describe_times,
    format_changes,
    other_differences,
    show_bounds,
)
from fastloop.reporting.report_files import markdown_row
from fastloop.reporting.version_outcome import VersionOutcome

MARKER = "<!-- fastloop check -->"
"""First line of the Markdown, by which a workflow finds its own comment."""
TITLES = {
    CheckStatus.NO_SLOWER: "no slower",
    CheckStatus.SLOWER: "slower",
    CheckStatus.OTHER_DATA: "other samples",
    CheckStatus.NOT_JUDGED: "not judged",
}
"""Status -> the title of the Markdown."""


def answer_versions(found: VersionOutcome) -> str:
    """The sentence that says whether the new version is slower, or why this is not known."""
    answer = _answer(found)
    # Only "the" gets a capital letter: a label such as `webdataset 1.0.1` is a name.
    return answer[0].upper() + answer[1:] if answer.startswith("the ") else answer


def _answer(found: VersionOutcome) -> str:
    """The answer for each status, see `VersionOutcome.status`; a label keeps its first letter."""
    base, new = found.base_label, found.new_label
    if found.status is CheckStatus.OTHER_DATA:
        name = found.other_samples[0]
        counts = f"{_samples(found.new[name])} against {_samples(found.base[name])}"
        return (
            f"{name} delivers different samples in {new} than in {base} ({counts}): their times "
            f"can't be compared."
        )
    if found.status is CheckStatus.NOT_JUDGED:
        return f"It is not clear whether {new} is slower: {_why_not_judged(found)}."
    if found.status is CheckStatus.NO_SLOWER:
        return f"{new} is no slower than {base}: {_takes(_find_slowest(found.changes))}."
    # The status is SLOWER, because a job broke or because of the times.
    if names := found.broken:
        return f"{names[0]} no longer finishes in {new}: {found.new[names[0]].status_reason}."
    worst = _find_slowest(found.changes_judged("slower"))
    return f"{new} is slower than {base}: {_takes(worst)}."


def _find_slowest(changes: Sequence[CostChange]) -> CostChange:
    """The change with the largest new time as a multiple of the base's time."""
    return max(changes, key=lambda each: each.multiple)


def _why_not_judged(found: VersionOutcome) -> str:
    """The clause that says why the check has no answer.

    The reason is a job that did not finish, or else too few rounds, or else the most uncertain
    change that can't be judged.
    """
    for label, results in ((found.base_label, found.base), (found.new_label, found.new)):
        failed = next((each for each in results.values() if each.status != "FINISHED"), None)
        # The reason of the failure, which may be long, is in the lines below.
        if failed is not None:
            end = "was skipped" if outcome(failed)[0] == "skipped" else "did not finish"
            return f"{failed.name} {end} in {label}, see below"
    widest = max(found.changes_judged(""), key=_width, default=None)
    if widest is None or widest.ratio is None:
        return "there were too few rounds; a larger seconds= allows more"
    return _takes(widest)


def _width(change: CostChange) -> float:
    """The quotient of the ends of the change's interval; 0 without an interval."""
    return change.ratio.high / change.ratio.low if change.ratio else 0.0


def _takes(change: CostChange) -> str:
    """The clause with the ratio of a change, its interval and both times."""
    job, times = f"{change.benchmark} of {change.job}", describe_times(change)
    if change.ratio is None:
        return f"{job} takes {times}"
    bounds = f"{times}; 95 %: {show_bounds(change.ratio)}"
    return f"{job} takes {change.ratio.estimate:.3f} times as long ({bounds})"


def _samples(result: Result) -> str:
    """The number of samples and the beginning of their digest, as text."""
    return f"{result.num_samples:,} samples, digest {result.content[:8] or 'unknown'}"


def describe_versions(found: VersionOutcome) -> str:
    """The whole text for a terminal: answer, load, table, versions and other differences."""
    blocks = [
        answer_versions(found),
        *found.load,
        format_changes(found.changes, found.fail_above).rstrip(),
        f"base: {found.base_label}\nnew:  {found.new_label}\n"
        f"{found.effort}; slower counts from {found.fail_above:g} % on",
        _differences(found),
    ]
    return _join_blocks(blocks)


def versions_markdown(found: VersionOutcome) -> str:
    """The comment for a pull request, as Markdown that begins with MARKER."""
    first = next(iter([*found.new.values(), *found.base.values()]), None)
    machine = first.environment if first else {}
    where = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores_usable', '?')} cores"
    blocks = [
        f"### fastloop check: {TITLES[found.status]}",
        answer_versions(found),
        _markdown_table(found.changes),
        f"Base: {found.base_label}. New: {found.new_label}. Both were measured on the same machine "
        f"({where}), {found.effort}. Times are of a sample.",
        *found.load,
        _differences(found),
    ]
    # A name may contain HTML, which Markdown would pass on.
    return _join_blocks([MARKER, *(each.replace("<", "&lt;") for each in blocks)]) + "\n"


def _markdown_table(changes: Sequence[CostChange]) -> str:
    """The table of both times and their ratio, a row for each change; empty without changes."""
    rows = [
        ["job", "benchmark", "base", "new", "new / base", "95 %"],
        ["---", "---", *["---:"] * 4],
    ]
    for change in changes:
        unit = unit_of_all([change.base_cost, change.new_cost])
        times = [show_time(each, unit) for each in (change.base_cost, change.new_cost)]
        ratio = change.ratio
        shown = [f"{ratio.estimate:.3f}", show_bounds(ratio)] if ratio else ["-", "-"]
        rows.append([change.job, change.benchmark, *times, *shown])
    return "\n".join(markdown_row(row) for row in rows) if changes else ""


def _differences(found: VersionOutcome) -> str:
    """Lines on jobs of one set only, unfinished jobs and different settings; empty without any."""
    return "\n".join(other_differences(found.pairs, dict(found.base), dict(found.new)))


def _join_blocks(blocks: Sequence[str]) -> str:
    """The blocks that are not empty, with an empty line between two blocks."""
    return "\n\n".join(each for each in blocks if each)
