"""Describe the outcome of `fastloop check against=`, which compares two versions of the code.

`describe_versions` writes the text for a terminal, `versions_markdown` the comment for a pull
request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastloop.core.result import Result, outcome
from fastloop.reporting.check_verdict import CheckStatus
from fastloop.reporting.comparable import delivers_same
from fastloop.reporting.comparison import CostChange, no_longer_finishes
from fastloop.reporting.comparison_text import (
    describe_times,
    format_changes,
    other_differences,
    show_bounds,
)
from fastloop.reporting.report_files import markdown_row
from fastloop.reporting.version_changes import judge_change

MARKER = "<!-- fastloop check -->"
"""First line of the Markdown, by which a workflow finds its own comment."""
TITLES = {
    CheckStatus.NO_SLOWER: "no slower",
    CheckStatus.SLOWER: "slower",
    CheckStatus.OTHER_DATA: "other samples",
    CheckStatus.NOT_JUDGED: "not judged",
}
"""The title of the Markdown by status."""
Results = Mapping[str, Result]


@dataclass(frozen=True, kw_only=True)
class VersionOutcome:
    """The trials of two versions, and the conclusions from them."""

    base_label: str
    new_label: str
    base: Results
    new: Results
    changes: Sequence[CostChange]
    fail_above: float
    """Allowed regression in percent."""
    effort: str
    """The rounds and their time in words, such as `20 rounds of 4 trials each in 312 s`."""
    load: Sequence[str] = ()
    """Sentences about the load of the machine."""

    @property
    def status(self) -> CheckStatus:
        """The exit status."""
        if self.other_samples:
            return CheckStatus.OTHER_DATA
        judgements = [judge_change(each, self.fail_above) for each in self.changes]
        if self.broken or "slower" in judgements:
            return CheckStatus.SLOWER
        # A job that can't be judged keeps the check from passing.
        is_complete = len({each.job for each in self.changes}) == len(self.base)
        is_judged = bool(judgements) and all(judgements)
        return CheckStatus.NO_SLOWER if is_judged and is_complete else CheckStatus.NOT_JUDGED

    @property
    def other_samples(self) -> list[str]:
        """Names of the jobs that do not deliver the same samples in both versions."""
        return find_other_samples(self.base, self.new)

    @property
    def broken(self) -> list[str]:
        """Names of the jobs that finish only in the base."""
        return [
            name
            for name, before in self.base.items()
            if name in self.new and no_longer_finishes(before, self.new[name])
        ]


def find_other_samples(base: Results, new: Results) -> list[str]:
    """Names of the jobs that do not deliver the same samples in both sets."""
    pairs = {name: (base[name], new[name]) for name in base if name in new}
    return [
        name
        for name, (before, after) in pairs.items()
        # A job that has failed before its data was known has no samples.
        if before.num_samples
        and after.num_samples
        and (before.num_samples != after.num_samples or not delivers_same(before, after))
    ]


def answer_versions(found: VersionOutcome) -> str:
    """The sentence that says whether the new version is slower, or why this is not known."""
    answer = _answer(found)
    # Only "the" gets a capital letter: a label such as `webdataset 1.0.1` is a name.
    return answer[0].upper() + answer[1:] if answer.startswith("the ") else answer


def _answer(found: VersionOutcome) -> str:
    """The first sentence: other samples, a job that broke, or the judgement on speed."""
    if names := found.other_samples:
        before, after = found.base[names[0]], found.new[names[0]]
        counts = f"{_samples(after)} against {_samples(before)}"
        return (
            f"{names[0]} delivers different samples in {found.new_label} than in "
            f"{found.base_label} ({counts}): their times can't be compared."
        )
    if names := found.broken:
        reason = found.new[names[0]].status_reason
        return f"{names[0]} no longer finishes in {found.new_label}: {reason}."
    judged: dict[str, list[CostChange]] = {"slower": [], "no slower": [], "": []}
    for each in found.changes:
        judged[judge_change(each, found.fail_above)].append(each)
    if judged["slower"]:
        worst = max(judged["slower"], key=lambda each: each.multiple)
        return f"{found.new_label} is slower than {found.base_label}: {_takes(worst)}."
    if found.status is CheckStatus.NOT_JUDGED:
        return _no_answer(found, judged[""])
    nearest = max(judged["no slower"], key=lambda each: each.multiple)
    return f"{found.new_label} is no slower than {found.base_label}: {_takes(nearest)}."


def _no_answer(found: VersionOutcome, unknown: Sequence[CostChange]) -> str:
    """A sentence on the reason why nothing is known."""
    for label, results in ((found.base_label, found.base), (found.new_label, found.new)):
        failed = next((each for each in results.values() if each.status != "FINISHED"), None)
        # The reason, which may be long, is in the lines below.
        if failed is not None:
            end = "was skipped" if outcome(failed)[0] == "skipped" else "did not finish"
            return (
                f"It is not clear whether {found.new_label} is slower: {failed.name} {end} in "
                f"{label}, see below."
            )
    widest = max(unknown, key=_width, default=None)
    if widest is None or widest.ratio is None:
        few = "there were too few rounds; a larger seconds= allows more"
        return f"It is not clear whether {found.new_label} is slower: {few}."
    return f"It is not clear whether {found.new_label} is slower: {_takes(widest)}."


def _width(change: CostChange) -> float:
    return change.ratio.high / change.ratio.low if change.ratio else 0.0


def _takes(change: CostChange) -> str:
    """The ratio of a change with its interval and both times."""
    times = describe_times(change)
    if change.ratio is None:
        return f"{change.benchmark} of {change.job} takes {times}"
    ratio = change.ratio
    job = f"{change.benchmark} of {change.job}"
    bounds = f"{times}; 95 %: {show_bounds(ratio)}"
    return f"{job} takes {ratio.estimate:.3f} times as long ({bounds})"


def _samples(result: Result) -> str:
    return f"{result.num_samples:,} samples, digest {result.content[:8] or 'unknown'}"


def describe_versions(found: VersionOutcome) -> str:
    """The whole text for a terminal: answer, load, table, versions and other differences."""
    blocks = [answer_versions(found), *found.load]
    if table := format_changes(found.changes, found.fail_above):
        blocks.append(table.rstrip())
    blocks.append(
        f"base: {found.base_label}\nnew:  {found.new_label}\n"
        f"{found.effort}; slower counts from {found.fail_above:g} % on"
    )
    blocks += _differences(found)
    return "\n\n".join(blocks)


def versions_markdown(found: VersionOutcome) -> str:
    """A comment for a pull request."""
    title = TITLES[found.status]
    rows = [
        ["job", "benchmark", "base", "new", "new / base", "95 %"],
        ["---", "---", *["---:"] * 4],
    ]
    for change in found.changes:
        new, base = describe_times(change).split(" a sample against ")
        ratio = change.ratio
        shown = [f"{ratio.estimate:.3f}"] if ratio else ["-"]
        shown += [show_bounds(ratio)] if ratio else ["-"]
        rows.append([change.job, change.benchmark, base, new, *shown])
    first = next(iter([*found.new.values(), *found.base.values()]), None)
    machine = first.environment if first else {}
    where = f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores_usable', '?')} cores"
    blocks = [f"### fastloop check: {title}", answer_versions(found)]
    if len(rows) > 2:
        blocks.append("\n".join(markdown_row(row) for row in rows))
    blocks.append(
        f"Base: {found.base_label}. New: {found.new_label}. Both were measured on the same machine "
        f"({where}), {found.effort}. Times are of a sample."
    )
    blocks += [*found.load, *_differences(found)]
    # A name may contain HTML, which Markdown would pass on.
    return "\n\n".join([MARKER, *(each.replace("<", "&lt;") for each in blocks)]) + "\n"


def _differences(found: VersionOutcome) -> list[str]:
    """Lines on jobs of one set only, unfinished jobs and different settings."""
    base, new = dict(found.base), dict(found.new)
    pairs = {name: (base[name], new[name]) for name in base if name in new}
    lines = other_differences(pairs, base, new)
    return ["\n".join(lines)] if lines else []
