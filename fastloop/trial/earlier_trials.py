"""Collect the findings of a sweep's earlier trials, which save a trial the same work.

They are the comparison of the data, the number of repeats of a window, and measured limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastloop.core.limit import Limit
from fastloop.core.result import BenchmarkName, Measurement, Trial


@dataclass(frozen=True, kw_only=True)
class EarlierFindings:
    """Findings of earlier trials; by default there are none."""

    may_be_unread: bool | None = None
    """True if bytes of some batch may be unread in a file. None: no trial has compared the data of
    the job with the dataset yet, so this trial does."""
    repeats: Mapping[BenchmarkName, int] = field(default_factory=dict)
    """Benchmark -> number of times that a window repeats the epochs to take min_window_s."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Key of some work -> its limit, for limits that were measured in this round; see limits.py."""


NO_FINDINGS = EarlierFindings()


def find_earlier(trials: Sequence[Trial], limits: Mapping[str, Limit]) -> EarlierFindings:
    """Findings of these trials of a job, and the limits of other jobs in the same round."""
    compared = [trial.calls.unread for trial in trials if trial.calls]
    repeats: dict[BenchmarkName, int] = {}
    for trial in trials:
        for name, measurement in trial.benchmarks.items():
            repeats[name] = max(measurement.repeats, repeats.get(name, 1))
    return EarlierFindings(
        may_be_unread=compared[0] if compared else None, repeats=repeats, limits=limits
    )


def limits_of(trial: Trial) -> dict[str, Limit]:
    """The limits that other jobs can use in the round of this trial, by their keys."""
    return {
        measurement.limit_key: limit
        for measurement in trial.benchmarks.values()
        if measurement.limit_key and (limit := _limit(measurement))
    }


def _limit(measurement: Measurement) -> Limit | None:
    """The limit that was measured next to the window; None if there is none."""
    rate, origin = measurement.limit_samples_per_s, measurement.limit_origin
    return None if rate is None or origin is None else Limit(samples_per_s=rate, origin=origin)
