"""Series of points for a tracker's charts of a result, with a point for each trial or each rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.result import Result, measurements
from fastloop.core.spans import wall_ms


@dataclass(frozen=True)
class Point:
    """A point of a series, as MLflow stores it."""

    name: str
    """Name of the series, which is a metric of MLflow."""
    value: float
    """The value, in seconds."""
    time_ms: int
    """Time of the point in milliseconds since 1970."""
    step: int
    """Number of the trial, or the rank."""


def trial_series(result: Result) -> list[Point]:
    """The points of the series `trials/<benchmark>_seconds`, one for each trial.

    The time of a point is the start of its trial, and the step is the number of the trial.
    """
    return [
        Point(f"trials/{name}_seconds", measurement.seconds, trial.started_ms, trial.number)
        for trial in result.trials
        for name, measurement in trial.benchmarks.items()
    ]


def rank_series(result: Result) -> list[Point]:
    """The points of `ranks/<benchmark>_seconds` and `ranks/<benchmark>_wait_s`, one for each rank.

    The first series has the median over all trials, the second the time in an epoch that a rank
    waits for batches and places them. The step is the rank. Empty for one process.
    """
    now_ms = wall_ms()
    names = result.trials[0].benchmarks if result.trials else ()
    return [
        Point(f"ranks/{name}_{metric}", value, now_ms, rank)
        for name in names
        for metric, values in _rank_values(result, name)
        for rank, value in enumerate(values)
    ]


def _rank_values(result: Result, name: str) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each metric of the benchmark, with its value for each rank in seconds."""
    trials = [trial.rank_seconds for trial in measurements(result, name)]
    yield "seconds", [stats.median(list(by_trial)) for by_trial in zip(*trials, strict=True)]
    attribution = result.attribution.get(name)
    ranks = attribution.ranks if attribution else []
    yield "wait_s", [rank.wait_s + rank.place_s for rank in ranks]
