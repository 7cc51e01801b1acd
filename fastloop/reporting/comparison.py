"""Compare two sets of results, a base and a new one, job by job.

`check_comparable` compares the conditions of the trials, `find_changes` tests the differences in
time, and `comparison_answer` says in sentences whether a job has become slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastloop.core import stats
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    TimeUnit,
    show_time,
    significant,
    unit_of_all,
)
from fastloop.core.pair_tests import holm, welch_p_value
from fastloop.core.result import Measurement, Result, measurements, outcome
from fastloop.core.types import UsageError

DEFAULTS = {"base": "", "new": "", "fail_above": "5", "allow": ""}
"""Settings of `fastloop compare`."""
FEWEST_TRIALS = 5
"""Minimum number of trials of a set for an interval: with fewer trials, the interval contains the
true ratio too rarely."""
Cost = Callable[[Measurement], float]
"""A trial -> the figure by which it is compared; lower is better."""
Pairs = dict[str, tuple[Result, Result]]
"""Name of a job -> its result in the base set and its result in the new set."""
SOURCE, CONTENT = "data fingerprint", "data content"
"""Names of two values of a job: the fingerprint of its data's source, and its samples' digest."""
UNKNOWN: tuple[object, ...] = (None, "")
"""Values in results of an older version, and of jobs that failed before they opened their data.
Each counts as equal to every value."""


@dataclass(frozen=True, kw_only=True)
class CostChange:
    """Difference between the sets in one benchmark of one job.

    base_s and new_s are medians of a cost. By default, the cost is seconds per sample, because the
    sets may differ in the number of samples.
    """

    benchmark: str
    job: str
    base_s: float
    new_s: float
    ratio: stats.Ratio | None
    """new / base; None with too few trials to tell a change from noise."""
    is_significant: bool = False
    """True if the difference is beyond noise, corrected for the number of changes."""

    def is_regression(self, fail_above: float) -> bool:
        """True if the job became slower beyond noise and by more than `fail_above` percent."""
        return self.is_slower and self.base_s * (1 + fail_above / 100) < self.new_s

    @property
    def is_slower(self) -> bool:
        """True if the job became slower beyond noise."""
        return self.ratio is not None and self.is_significant and self.ratio.low > 1

    @property
    def is_faster(self) -> bool:
        """True if the job became faster beyond noise."""
        return self.ratio is not None and self.is_significant and self.ratio.high < 1


def seconds_per_sample(measured: Measurement) -> float:
    """The time of a trial over its samples."""
    return measured.seconds / measured.samples


def find_changes(pairs: Pairs, cost: Cost = seconds_per_sample) -> list[CostChange]:
    """Find the change of every benchmark of every job that finished in both sets.

    The tests are corrected for their number (Holm 1979): two sets of equal jobs, however
    many, have a significant change in at most 5 % of cases.
    """
    changes = [
        _change(
            name,
            benchmark,
            [cost(each) for each in measurements(before, benchmark)],
            [cost(each) for each in measurements(after, benchmark)],
        )
        for name, (before, after) in pairs.items()
        if before.status == after.status == "FINISHED"
        for benchmark in dict.fromkeys(b for trial in before.trials for b in trial.benchmarks)
        if measurements(after, benchmark)
    ]
    p_values = np.array([change.ratio.p_value if change.ratio else 1.0 for change in changes])
    significant = holm(p_values, 0.05).tolist()
    return [
        replace(change, is_significant=is_significant)
        for change, is_significant in zip(changes, significant, strict=True)
    ]


def ratio_of_medians(new: Sequence[float], base: Sequence[float]) -> stats.Ratio | None:
    """Ratio of the medians of two separate runs, with its 95 % interval and a two-sided p value of
    the logarithms (Welch's t test); None below FEWEST_TRIALS."""
    # The trials of two commands are not paired by round, so the plain bootstrap of both is used.
    from scipy.stats import bootstrap

    if min(len(new), len(base)) < FEWEST_TRIALS:
        return None
    result = bootstrap((new, base), _median_ratio, vectorized=True, method="percentile", rng=0)
    low, high = (float(bound) for bound in result.confidence_interval)
    return stats.Ratio(
        estimate=float(_median_ratio(new, base)),
        low=low,
        high=high,
        p_value=welch_p_value(np.log(new), np.log(base)),
    )


def format_changes(changes: Sequence[CostChange], fail_above: float) -> str:
    """A table for each benchmark."""
    tables = []
    for benchmark in dict.fromkeys(change.benchmark for change in changes):
        shown = [change for change in changes if change.benchmark == benchmark]
        unit = unit_of_all([each for change in shown for each in (change.base_s, change.new_s)])
        title = f"{benchmark}, {unit.name} a sample"
        head = f"{title:<31}{'base':>9}{'new':>9}  new/base   95 %"
        rows = [_line(change, fail_above, unit) for change in shown]
        tables.append("\n".join([head, *rows]))
    return "\n\n".join(tables) + ("\n" if tables else "")


def _median_ratio(new: Sequence[float], base: Sequence[float], axis: int = -1):
    return np.median(new, axis=axis) / np.median(base, axis=axis)


def _change(job: str, benchmark: str, base_s: list[float], new_s: list[float]) -> CostChange:
    """The change of a benchmark of a job, before the test is corrected for the number of tests."""
    return CostChange(
        benchmark=benchmark,
        job=job,
        base_s=stats.median(base_s),
        new_s=stats.median(new_s),
        ratio=ratio_of_medians(new_s, base_s),
    )


def _line(change: CostChange, fail_above: float, unit: TimeUnit) -> str:
    """A row of the table: job, both times, and their ratio with its interval."""
    shown = (significant(unit.of(each), 4) for each in (change.base_s, change.new_s))
    figures = "".join(f"{each:>9}" for each in shown) + "  "
    ratio = change.ratio
    if ratio is None:
        figures += f"{change.new_s / change.base_s:>8.3f}   too few trials"
    else:
        figures += f"{ratio.estimate:>8.3f}   {show_bounds(ratio)}"
        figures += f" {_direction(change, fail_above)}"
    # A name that is longer than its column gets a line of its own.
    name = f"{change.job:<31}" if len(change.job) < 31 else f"{change.job}\n{' ' * 31}"
    return name + figures.rstrip()


def show_bounds(ratio: stats.Ratio) -> str:
    """The interval of a ratio; words if it is so wide that its numbers would say nothing."""
    if ratio.high < WIDEST_INTERVAL * ratio.low:
        return f"{ratio.low:.3f} to {ratio.high:.3f}"
    return f"wider than a factor of {WIDEST_INTERVAL:g}"


def _direction(change: CostChange, fail_above: float) -> str:
    """The word for a change beyond noise; empty if there is none."""
    if change.is_regression(fail_above):
        return "SLOWER"
    if change.is_faster:
        return "faster"
    return "slower" if change.is_slower else ""


def other_differences(pairs: Pairs, base: dict[str, Result], new: dict[str, Result]) -> list[str]:
    """Lines about jobs of one set only, unfinished jobs and different settings, which no table
    has."""
    lines = [f"only in base: {name}" for name in base if name not in new]
    lines += [f"only in new: {name}" for name in new if name not in base]
    for name, (before, after) in pairs.items():
        if not before.status == after.status == "FINISHED":
            label = "NO LONGER FINISHES" if no_longer_finishes(before, after) else "not compared"
            lines += [f"{label}: {name}: {_outcomes(before, after)}"]
    # Three differences are not listed: folders do not matter, `cache` is one of CONDITIONS, and
    # another number of trials changes only the certainty.
    differences = {
        f"{name} {before.params.get(name)} -> {after.params.get(name)}"
        for before, after in pairs.values()
        for name in before.params.keys() | after.params.keys()
        if before.params.get(name) != after.params.get(name)
        and name not in ("cache", "trials")
        and not name.endswith(".root")
    }
    return lines + [f"differs: {difference}" for difference in sorted(differences)]


def _outcomes(before: Result, after: Result) -> str:
    base, new = _show_outcome(before), _show_outcome(after)
    return f"{base} in both" if base == new else f"base {base}, new {new}"


def _show_outcome(result: Result) -> str:
    return ": ".join(filter(None, outcome(result)))


def no_longer_finishes(before: Result, after: Result) -> bool:
    """True if the job finished in the base set but not in the new one."""
    return before.status == "FINISHED" != after.status


def parse_percent(text: str) -> float:
    """Parse the percentage; raises UsageError unless it is finite and at least 0."""
    try:
        # float() also accepts the digits of other scripts, which are a typing error here.
        percent = float(text) if text.isascii() else math.nan
    except ValueError:
        percent = math.nan
    if not 0 <= percent < math.inf:
        raise UsageError(f"fail_above={text}: allowed: a percentage, 0 or more")
    return percent


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that is not the same in both sets."""

    job: str
    condition: str
    """A name that `allow=` accepts."""
    key: str
    """Name of the value that differs."""
    base: object
    new: object


def find_differences(pairs: Pairs) -> Iterator[Difference]:
    """Find the conditions that differ, job by job."""
    for name, pair in pairs.items():
        for condition, values in CONDITIONS.items():
            before, after = map(values, pair)
            for key in sorted(_differing_keys(before, after)):
                yield Difference(
                    job=name, condition=condition, key=key, base=before[key], new=after[key]
                )


def check_comparable(
    pairs: Pairs, base: dict[str, Result], new: dict[str, Result], allowed: set[str]
) -> None:
    """Raise UsageError if the sets share no job, or differ in a condition not in `allowed`."""
    if not pairs:
        first, other = next(iter(base)), next(iter(new))
        raise UsageError(
            f"no job is in both sets: base has {len(base)} ({first}, …), "
            f"new has {len(new)} ({other}, …)"
        )
    for each in find_differences(pairs):
        if each.condition not in allowed:
            raise UsageError(
                f"{each.job}: different {each.key} ({each.base} in base, {each.new} in new); "
                f"allow={each.condition} compares them anyway"
            )


def parse_allow(names: set[str]) -> set[str]:
    """Return the names of conditions; raises UsageError for any other name."""
    if unknown := sorted(names - CONDITIONS.keys()):
        shown = ",".join(sorted(names))
        allowed = ",".join(CONDITIONS)
        raise UsageError(f"allow={shown}: no such difference: {unknown[0]}; allowed: {allowed}")
    return names


def _differing_keys(base: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Keys with known values that differ; the data's source may differ if its content is equal."""
    shared = base.keys() & new.keys()
    known = [key for key in shared if base[key] not in UNKNOWN and new[key] not in UNKNOWN]
    differing = [key for key in known if base[key] != new[key]]
    same_content = CONTENT in known and CONTENT not in differing
    return [key for key in differing if not (same_content and key == SOURCE)]


def _machine(result: Result) -> Mapping[str, object]:
    keys = ("host", "cpu", "cores", "cores_usable", "gpus")
    return {key: result.environment.get(key) for key in keys} | {
        "device": result.tags.get("device")
    }


def _versions(result: Result) -> Mapping[str, object]:
    """Versions of Python and the libraries."""
    # fastloop is left out: comparing two of its versions is a purpose of a comparison.
    versions = dict(result.environment.get("versions") or {})
    versions.pop("fastloop", None)
    return versions | {"python": result.environment.get("python")}


def _data(result: Result) -> Mapping[str, object]:
    settings = {name: result.params.get(name) for name in ("epochs", "drop_last")}
    return {SOURCE: result.fingerprint, CONTENT: result.content} | settings


def _cache(result: Result) -> Mapping[str, object]:
    return {"cache state": result.params.get("cache")}


CONDITIONS: dict[str, Callable[[Result], Mapping[str, object]]] = {
    "machine": _machine,
    "versions": _versions,
    "data": _data,
    "cache": _cache,
}
"""A name that `allow=` accepts -> function that returns the values of a job which have to be equal
in both sets."""


def comparison_answer(pairs: Pairs, changes: Sequence[CostChange], fail_above: float) -> str:
    """Sentences that say whether a job has become slower by more than `fail_above` percent, whether
    a job finishes only in the base, and how many changes could not be judged."""
    broken = [name for name, pair in pairs.items() if no_longer_finishes(*pair)]
    regressions = [each for each in changes if each.is_regression(fail_above)]
    unknown = [each for each in changes if each.ratio is None]
    sentences = [_broken_sentence(broken)] if broken else []
    if regressions:
        sentences += _slower_sentences(regressions, len(changes))
    # Nothing is known of any change, so no job can be called fine.
    elif changes and len(unknown) == len(changes):
        sentences.append(f"No answer yet: each set needs {FEWEST_TRIALS} trials of a job or more.")
        return " ".join(sentences)
    elif changes and not broken:
        sentences += _fine_sentences(changes, fail_above)
    elif not broken:
        sentences.append("No answer: no job has finished in both sets.")
    if unknown:
        needed = f"each set needs {FEWEST_TRIALS} trials or more"
        verb = "is" if len(unknown) == 1 else "are"
        sentences.append(f"{len(unknown)} of {len(changes)} {verb} not judged: {needed}.")
    return " ".join(sentences)


def describe_times(change: CostChange) -> str:
    """Both times of a change, the new one first: `12.1 us a sample against 9.3 us`."""
    unit = unit_of_all([change.base_s, change.new_s])
    return f"{show_time(change.new_s, unit)} a sample against {show_time(change.base_s, unit)}"


def _broken_sentence(names: Sequence[str]) -> str:
    verb = "no longer finishes" if len(names) == 1 else "no longer finish"
    return f"{', '.join(names)} {verb}."


def _slower_sentences(regressions: Sequence[CostChange], compared: int) -> list[str]:
    """Sentences on the worst regression, and on the number of regressions."""
    worst = max(regressions, key=lambda each: each.new_s / each.base_s)
    ratio = worst.ratio
    # A change without a ratio is not a regression.
    assert ratio is not None
    bounds = f"95 %: {significant(ratio.low)} to {significant(ratio.high)}"
    times = f"{significant(ratio.estimate)} times as long as in the base"
    answer = f"{worst.job} has become slower: {worst.benchmark} takes {times}"
    sentences = [f"{answer} ({describe_times(worst)}; {bounds})."]
    if len(regressions) > 1:
        sentences.append(f"In all {len(regressions)} of {compared} comparisons are slower.")
    return sentences


def _fine_sentences(changes: Sequence[CostChange], fail_above: float) -> list[str]:
    """Sentences for sets without a regression, and on changes that noise may hide."""
    faster = sum(each.is_faster for each in changes)
    numbers = {"is faster" if faster == 1 else "are faster": faster}
    slower = sum(each.is_slower for each in changes)
    numbers |= {"is slower by less" if slower == 1 else "are slower by less": slower}
    counts = [f"{count} of {len(changes)} {words}" for words, count in numbers.items() if count]
    rest = f": {', '.join(counts)}" if counts else ""
    # Noise may hide a regression: the sentence must not rule out one that the intervals allow.
    known = [(each, each.ratio) for each in changes if each.ratio]
    open_ones = [each for each in known if each[1].high > 1 + fail_above / 100]
    surely = "surely " if open_ones or len(known) < len(changes) else ""
    sentences = [f"No job has {surely}become slower by more than {fail_above:g} %{rest}."]
    if open_ones:
        worst, ratio = max(open_ones, key=lambda each: each[1].high)
        bounds = f"{significant(ratio.low)} to {significant(ratio.high)} times as long (95 %)"
        sentences.append(
            f"{len(open_ones)} of {len(changes)} may have: {worst.benchmark} of {worst.job} takes "
            f"{bounds}."
        )
    return sentences
