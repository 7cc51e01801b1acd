"""Compare two sets of results, a base and a new one, job by job.

`check_comparable` compares the conditions of the trials, `find_changes` tests the differences in
time, and comparison_text.py puts these into words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastloop.core import stats
from fastloop.core.pair_tests import holm, welch_p_value
from fastloop.core.result import Measurement, Result, measurements
from fastloop.core.types import UsageError

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
"""Values that mean unknown, as in results of an older version, and of jobs that failed before they
opened their data. An unknown value counts as equal to every value."""


@dataclass(frozen=True, kw_only=True)
class CostChange:
    """Difference between the sets in one benchmark of one job.

    The cost of a trial is its seconds per sample, because the sets may differ in the number of
    samples. `find_changes` also accepts a function for another cost.
    """

    benchmark: str
    job: str
    base_cost: float
    """Median cost of the trials of the base set."""
    new_cost: float
    """Median cost of the trials of the new set."""
    ratio: stats.Ratio | None
    """Ratio of new costs to base costs; None with too few trials to tell a change from noise."""
    is_significant: bool = False
    """True if the difference is beyond noise, corrected for the number of changes."""

    @property
    def multiple(self) -> float:
        """The new cost as a multiple of the base's cost."""
        return self.new_cost / self.base_cost

    def is_regression(self, fail_above: float) -> bool:
        """True if the job became slower beyond noise and by more than `fail_above` percent."""
        return self.is_slower and self.base_cost * (1 + fail_above / 100) < self.new_cost

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

    The tests are corrected for their number (Holm 1979): if no job has changed, at most 5 % of all
    calls find any significant change, however many jobs there are.
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
    """Ratio of the medians of two separate runs; None if a run has fewer than FEWEST_TRIALS trials.

    The ratio has a 95 % interval, and the two-sided p value of Welch's t test of the logarithms.
    """
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


def _median_ratio(new: Sequence[float], base: Sequence[float], axis: int = -1):
    """Ratio of the medians along the axis, which holds the trials."""
    return np.median(new, axis=axis) / np.median(base, axis=axis)


def _change(job: str, benchmark: str, base: list[float], new: list[float]) -> CostChange:
    """The change of a benchmark of a job, before the test is corrected for the number of tests.

    base, new: the cost of each trial of a set.
    """
    return CostChange(
        benchmark=benchmark,
        job=job,
        base_cost=stats.median(base),
        new_cost=stats.median(new),
        ratio=ratio_of_medians(new, base),
    )


def no_longer_finishes(before: Result, after: Result) -> bool:
    """True if the job finished in the base set but not in the new one."""
    return before.status == "FINISHED" != after.status


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that is not the same in both sets."""

    job: str
    condition: str
    """A name that `allow=` accepts."""
    key: str
    """Name of the value that differs."""
    base: object
    """The value in the base set."""
    new: object
    """The value in the new set."""


def find_differences(pairs: Pairs) -> Iterator[Difference]:
    """Find the values that differ in any of CONDITIONS, job by job."""
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


def _differing_keys(base: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Keys of known values that differ, without SOURCE if the samples are equal."""
    shared = base.keys() & new.keys()
    known = [key for key in shared if base[key] not in UNKNOWN and new[key] not in UNKNOWN]
    differing = [key for key in known if base[key] != new[key]]
    same_content = CONTENT in known and CONTENT not in differing
    return [key for key in differing if not (same_content and key == SOURCE)]


def _machine(result: Result) -> Mapping[str, object]:
    """The host, its processors, its GPUs and the device of the job."""
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
    """The identity of the data, and the settings that change the delivered samples."""
    settings = {name: result.params.get(name) for name in ("epochs", "drop_last")}
    return {SOURCE: result.fingerprint, CONTENT: result.content} | settings


def _cache(result: Result) -> Mapping[str, object]:
    """The requested state of the page cache."""
    return {"cache state": result.params.get("cache")}


CONDITIONS: dict[str, Callable[[Result], Mapping[str, object]]] = {
    "machine": _machine,
    "versions": _versions,
    "data": _data,
    "cache": _cache,
}
"""A name that `allow=` accepts -> the function that returns those values of a job that have to be
equal in both sets."""
