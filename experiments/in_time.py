"""Jobs in rounds for as long as there is time, in this process, without Hydra and a tracker."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fastloop import stats
from fastloop.job import Job
from fastloop.launchers.single import Single
from fastloop.prepared import prepare
from fastloop.result import Attribution, Measured
from fastloop.schedule import rounds
from fastloop.spans import now_ns, seconds_between
from fastloop.trial import run_instrumented, run_trial
from fastloop.types import JobFailed, Prepared

Figures = dict[str, Any]
MOST_TRIALS = 5
NO_TIME = "left out: no time was left"


@dataclass
class Seen:
    """What is known of one job so far."""

    job: Job
    prepared: Prepared | None = None
    trials: list[Measured] = field(default_factory=list)
    looked: Attribution | None = None
    why: str = ""
    """There is nothing more to come of it."""
    longest_s: float = 0.0
    """Of what was done for it at once."""


def rows_in_time(
    jobs: Mapping[str, Job],
    seconds: float,
    keep: Callable[[list[Figures]], None],
    looks_first: bool = False,
) -> None:
    """A trial of each job in their order and a look into each, or these first, then rounds of
    further trials.

    `keep` gets all rows before the first step and after every one; a job that failed, is
    unsupported or for which there was no time has `why` instead of figures. One process for all,
    unlike a sweep: starting CUDA takes longer than most of these trials.
    """
    start_ns = now_ns()
    seen = {name: Seen(job) for name, job in jobs.items()}
    keep(_rows(seen))
    for name, work in _turns([*seen], looks_first):
        one, began_ns = seen[name], now_ns()
        left_s = seconds - seconds_between(start_ns, began_ns)
        if one.why or one.longest_s > left_s or left_s <= 0:
            continue
        try:
            work(one)
        except JobFailed as failure:
            one.why = failure.reason
        one.longest_s = max(one.longest_s, seconds_between(began_ns, now_ns()))
        keep(_rows(seen))
        gc.collect()


def _turns(names: list[str], looks_first: bool) -> list[tuple[str, Callable[[Seen], None]]]:
    order = (_look, _trial) if looks_first else (_trial, _look)
    turns = [(name, work) for work in order for name in names]
    for places in rounds([MOST_TRIALS - 1] * len(names)):
        turns += [(names[place], _trial) for place in places]
    return turns


def _prepared(one: Seen) -> Prepared:
    if one.prepared is None:
        given = one.job.dataset, one.job.loader.store, one.job.collate.tolerant
        one.prepared = Single(isolation="inline").call(prepare, *given)
    return one.prepared


def _trial(one: Seen) -> None:
    given = one.job, _prepared(one), len(one.trials), now_ns()
    trial = Single(isolation="inline").call(run_trial, *given)
    one.trials.append(trial.benchmarks[_benchmark(one.job)])


def _look(one: Seen) -> None:
    given = one.job, _prepared(one), _benchmark(one.job)
    one.looked = Single(isolation="inline").call(run_instrumented, *given)


def _benchmark(job: Job) -> str:
    """Its last: what comes before warms up."""
    return list(job.benchmark)[-1]


def _rows(seen: Mapping[str, Seen]) -> list[Figures]:
    rows = [_row(name, one) for name, one in seen.items()]
    first = rows[0].get("samples_per_s") if rows else None
    for row in rows:
        if first and "samples_per_s" in row:
            row["times_the_first"] = row["samples_per_s"] / first
    return rows


def _row(name: str, one: Seen) -> Figures:
    found: Figures = {"name": name}
    if one.trials or one.looked is not None:
        found |= _rate(one)
    if one.looked is not None:
        found["wait_fraction"] = sum(one.looked.wait_s) / one.looked.seconds
        found["stall_fraction"] = one.looked.stall_fraction
    if one.why or len(found) == 1:
        found["why"] = one.why or NO_TIME
    return found


def _rate(one: Seen) -> Figures:
    rates = [trial.samples_per_s for trial in one.trials]
    if not rates:
        return {"trials": 0}
    found: Figures = {"trials": len(rates), "samples_per_s": median(rates)}
    if bounds := stats.interval(rates):
        found |= {"low": bounds[0], "high": bounds[1]}
    if one.prepared is not None:
        found["mb_per_s"] = median(rates) * one.prepared.sample_nbytes / 1e6
    limits = [trial.samples_per_s / trial.limit_samples_per_s for trial in one.trials]
    return found | {"limit_fraction": median(limits)}
