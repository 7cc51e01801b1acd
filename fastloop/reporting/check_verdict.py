"""Judge for `fastloop check` whether jobs have become slower than their recorded results, the base.

`check_conditions` finds differences that make times incomparable, `check_speed` judges the times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from fastloop.core.result import Measurement, Result
from fastloop.core.types import UsageError
from fastloop.reporting.comparison import (
    Cost,
    CostChange,
    Difference,
    Pairs,
    find_changes,
    find_differences,
    no_longer_finishes,
    seconds_per_sample,
)
from fastloop.reporting.comparison_text import describe_times, other_differences

Results = dict[str, Result]
"""Name of a job -> its result."""
Measure = Literal["seconds", "limit_fraction"]
"""The compared figure: a trial's seconds per sample, or its share of the machine's limit."""
HOST = "host"
"""Key of a host's name: in the environment of a result, and in a difference of two environments."""
OF_DATA = "data"
"""The condition of a difference of data, see CONDITIONS in comparison.py."""
TIMES: dict[str, str] = {
    "seconds": "the base's time",
    "limit_fraction": "the base's time relative to the machine's limit",
}
"""Measure -> words for the base's figure."""


class CheckStatus(IntEnum):
    """The outcome of a check, by its exit status."""

    NO_SLOWER = 0
    """No job is slower than allowed."""
    SLOWER = 1
    """A job is slower than allowed, or no longer finishes."""
    OTHER_ENVIRONMENT = 2
    """The machine, the versions or the state of the page cache differ from the base's."""
    OTHER_DATA = 3
    """The samples differ from the base's, or the number of epochs, or the setting `drop_last`."""
    NOT_JUDGED = 4
    """Nothing is known: for example, there are too few trials or no base, or a setting is wrong."""


@dataclass(frozen=True, kw_only=True)
class CheckVerdict:
    """The outcome of a check."""

    status: CheckStatus
    lines: tuple[str, ...]
    """The sentences that the command prints."""
    slower: frozenset[tuple[str, str]] = frozenset()
    """(job, benchmark) of each time that is longer than allowed."""


def check_conditions(pairs: Pairs, allowed: Sequence[str]) -> CheckVerdict | None:
    """The verdict if environments or data make times incomparable; None if the times can be judged.

    allowed: conditions that may differ, such as "versions"; see CONDITIONS in comparison.py.
    """
    # Another host does not count as a difference, because a CI service has many hosts. The other
    # keys describe the kind of machine.
    found = [
        each
        for each in find_differences(pairs)
        if each.condition not in allowed and each.key != HOST
    ]
    environment = [each for each in found if each.condition != OF_DATA]
    if environment:
        return _incomparable("environment", environment, CheckStatus.OTHER_ENVIRONMENT)
    return _incomparable("data", found, CheckStatus.OTHER_DATA) if found else None


def check_speed(base: Results, new: Results, measure: Measure, fail_above: float) -> CheckVerdict:
    """Judge whether a job has become slower beyond noise and by more than `fail_above` percent.

    base, new: the recorded results and the new ones. The check does not pass if a job of the base
    was not measured. Raises UsageError if the two share no job, or if `measure` is limit_fraction
    and a job has no limit.
    """
    pairs = {name: (base[name], new[name]) for name in base if name in new}
    if not pairs:
        first, other = ", ".join(base), ", ".join(new)
        raise UsageError(f"job: measures {other}; the base has {first}: record it again")
    changes = find_changes(pairs, _cost(pairs, measure))
    lines = [_describe(each, measure, fail_above) for each in changes]
    lines += other_differences(pairs, base, new)
    lines += [f"host: {old} in the base, {now} here" for old, now in sorted(_hosts(pairs), key=str)]
    slower = frozenset(
        (each.job, each.benchmark) for each in changes if each.is_regression(fail_above)
    )
    missing = [name for name in base if name not in new]
    if missing:
        names = ", ".join(missing)
        lines.append(
            f"jobs of the base that were not measured: {names}; record=true leaves them out"
        )
    # A single regression fails the check, even if other jobs can't be judged. Without a regression,
    # the check passes only if all jobs are judged.
    if slower or any(no_longer_finishes(*pair) for pair in pairs.values()):
        status = CheckStatus.SLOWER
    elif missing or not changes or any(each.ratio is None for each in changes):
        status = CheckStatus.NOT_JUDGED
    else:
        status = CheckStatus.NO_SLOWER
    return CheckVerdict(status=status, lines=tuple(lines), slower=slower)


def _incomparable(subject: str, found: Sequence[Difference], status: CheckStatus) -> CheckVerdict:
    """The verdict that names the differences, and the settings that would allow a comparison.

    subject: the word for the things that differ, environment or data.
    """
    shown = dict.fromkeys(
        f"{each.key} ({each.base} in the base, {each.new} here)" for each in found
    )
    names = ", ".join(dict.fromkeys(each.condition for each in found))
    remedy = f"record=true records a new base, allow: [{names}] in the file compares them anyway"
    line = f"{subject} differs: {', '.join(shown)}: not comparable; {remedy}"
    return CheckVerdict(status=status, lines=(line,))


def _hosts(pairs: Pairs) -> set[tuple[object, object]]:
    """The pairs (host of the base, new host) of jobs that were measured on different hosts."""
    hosts = [tuple(each.environment.get(HOST) for each in pair) for pair in pairs.values()]
    return {(old, now) for old, now in hosts if old != now}


def _cost(pairs: Pairs, measure: Measure) -> Cost:
    """The function that returns the compared figure of a trial; a lower figure is better.

    Raises UsageError if `measure` is limit_fraction and a job has no limit.
    """
    if measure == "seconds":
        return seconds_per_sample
    for pair in pairs.values():
        for trial in (trial for result in pair for trial in result.trials):
            if None in {each.limit_fraction for each in trial.benchmarks.values()}:
                name = pair[0].name
                raise UsageError(f"measure=limit_fraction: {name} has no limit; allowed: seconds")
    return _multiple_of_limit


def _multiple_of_limit(measured: Measurement) -> float:
    """The trial's time as a multiple of the time that the machine's limit allows."""
    assert measured.limit_fraction is not None
    return 1 / measured.limit_fraction


def _describe(change: CostChange, measure: Measure, fail_above: float) -> str:
    """The line on the change of one benchmark of one job."""
    times = f"speed: {change.job}, {change.benchmark}: {change.multiple:.3f} times "
    times += TIMES[measure]
    if measure == "seconds":
        times += f" ({describe_times(change)})"
    ratio = change.ratio
    if ratio is None:
        return f"{times}; too few trials to tell it from noise: both need five or more"
    times += f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    if change.is_regression(fail_above):
        return f"{times}: SLOWER; allowed: {1 + fail_above / 100:g}"
    if change.is_slower or change.is_faster:
        word = "slower" if change.is_slower else "faster"
        return f"{times}: {word}" + (", within what is allowed" if change.is_slower else "")
    return f"{times}: no change beyond noise"
