"""Collect findings of a sweep's earlier trials, so that a later trial need not repeat the work.

The findings are the result of comparing the loader's data with the dataset, the number of repeats
of a window, which is the timed part of a trial, and measured limits of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fastloop.core.limit import Limit
from fastloop.core.result import BenchmarkName, Measurement, Trial


@dataclass(frozen=True, kw_only=True)
class EarlierFindings:
    """Findings of earlier trials that a trial reuses; by default there are none."""

    may_be_unread: bool | None = None
    """True if a batch may contain bytes that have not yet been read from a file. None: no trial has
    compared the job's data with the dataset, so the new trial compares them."""
    repeats: Mapping[BenchmarkName, int] = field(default_factory=dict)
    """Name of a benchmark -> number of times that its window repeats the epochs, so that the window
    lasts min_window_s."""
    limits: Mapping[str, Limit] = field(default_factory=dict)
    """Key of some work (`Measurement.limit_key`) -> the limit of that work, as measured in this
    round."""


NO_FINDINGS = EarlierFindings()


def find_earlier(trials: Sequence[Trial], limits: Mapping[str, Limit]) -> EarlierFindings:
    """Findings of these trials of a job, together with the limits of its round.

    limits: as in EarlierFindings.
    """
    compared = [trial.calls.unread for trial in trials if trial.calls]
    repeats: dict[BenchmarkName, int] = {}
    for trial in trials:
        for name, measurement in trial.benchmarks.items():
            repeats[name] = max(measurement.repeats, repeats.get(name, 1))
    return EarlierFindings(
        may_be_unread=compared[0] if compared else None, repeats=repeats, limits=limits
    )


def limits_of(trial: Trial) -> dict[str, Limit]:
    """Key -> limit, for each limit of this trial that other jobs of its round can reuse."""
    return {
        measurement.limit_key: limit
        for measurement in trial.benchmarks.values()
        if measurement.limit_key and (limit := _limit(measurement))
    }


def _limit(measurement: Measurement) -> Limit | None:
    """The limit that was measured next to the window; None if no limit was measured."""
    rate, origin = measurement.limit_samples_per_s, measurement.limit_origin
    return None if rate is None or origin is None else Limit(samples_per_s=rate, origin=origin)
