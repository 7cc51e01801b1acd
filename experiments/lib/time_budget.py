"""Jobs measured in rounds until a time budget is spent, in this process, without Hydra or a
tracker."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from fastloop.core import stats
from fastloop.core.interleave import rounds
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Attribution, Measurement
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import JobFailed
from fastloop.data.prepare_dataset import prepare
from fastloop.options.launcher.single import SingleLauncher
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.job import Job
from fastloop.trial.timed_trial import run_trial

Figures = dict[str, Any]
MOST_TRIALS = 5
NO_TIME = "left out: no time was left"


@dataclass
class JobProgress:
    """A job, and its results so far."""

    job: Job
    prepared: PreparedData | None = None
    trials: list[Measurement] = field(default_factory=list)
    attribution: Attribution | None = None
    """The result of its instrumented pass."""
    reason: str = ""
    """The reason why it is no longer measured; empty if it is."""
    longest_s: float = 0.0
    """Seconds of its longest turn so far."""


Turn = Callable[[JobProgress], None]


def measure_in_time(
    jobs: Mapping[str, Job],
    seconds: float,
    keep: Callable[[list[Figures]], None],
    passes_first: bool = False,
) -> None:
    """Run one trial of each job, then an instrumented pass of each, then further trials in rounds.

    passes_first: run the instrumented passes before the first trials. `keep` gets all rows before
    the first turn and after each turn; a job that failed, is unsupported, or got no time has `why`
    instead of figures. Unlike in a sweep, all trials share one process, because starting CUDA takes
    longer than most of these trials.
    """
    start_ns = now_ns()
    progress = {name: JobProgress(job) for name, job in jobs.items()}
    keep(_rows(progress))
    for name, turn in _turns([*progress], passes_first):
        job, turn_start_ns = progress[name], now_ns()
        left_s = seconds - seconds_between(start_ns, turn_start_ns)
        if job.reason or job.longest_s > left_s or left_s <= 0:
            continue
        try:
            turn(job)
        except JobFailed as failure:
            job.reason = str(failure)
        job.longest_s = max(job.longest_s, seconds_between(turn_start_ns, now_ns()))
        keep(_rows(progress))
        gc.collect()


def _turns(names: list[str], passes_first: bool) -> list[tuple[str, Turn]]:
    order = (_run_instrumented, _run_trial) if passes_first else (_run_trial, _run_instrumented)
    turns = [(name, turn) for turn in order for name in names]
    for _, names_of_round in rounds(dict.fromkeys(names, MOST_TRIALS - 1)):
        turns += [(name, _run_trial) for name in names_of_round]
    return turns


def _prepare(progress: JobProgress) -> PreparedData:
    if progress.prepared is None:
        job = progress.job
        arguments = job.dataset, job.loader.store, job.collate.tolerant
        progress.prepared = SingleLauncher(isolation="inline").call(prepare, *arguments)
    return progress.prepared


def _run_trial(progress: JobProgress) -> None:
    arguments = progress.job, _prepare(progress), len(progress.trials), now_ns()
    trial = SingleLauncher(isolation="inline").call(run_trial, *arguments)
    progress.trials.append(trial.benchmarks[_last_benchmark(progress.job)])


def _run_instrumented(progress: JobProgress) -> None:
    arguments = progress.job, _prepare(progress), _last_benchmark(progress.job)
    progress.attribution = SingleLauncher(isolation="inline").call(run_instrumentation, *arguments)


def _last_benchmark(job: Job) -> str:
    """The benchmark that is measured; those before it are a warm-up."""
    return list(job.benchmark)[-1]


def _rows(progress: Mapping[str, JobProgress]) -> list[Figures]:
    rows = [_row(name, job) for name, job in progress.items()]
    first = rows[0].get("samples_per_s") if rows else None
    for row in rows:
        if first and "samples_per_s" in row:
            row["times_the_first"] = row["samples_per_s"] / first
    return rows


def _row(name: str, progress: JobProgress) -> Figures:
    row: Figures = {"name": name}
    attribution = progress.attribution
    if progress.trials or attribution is not None:
        row |= _rate(progress)
    if attribution is not None:
        row["wait_fraction"] = sum(attribution.wait_s) / attribution.seconds
        row["stall_fraction"] = attribution.stall_fraction
    if progress.reason or len(row) == 1:
        row["why"] = progress.reason or NO_TIME
    return row


def _rate(progress: JobProgress) -> Figures:
    rates = [trial.samples_per_s for trial in progress.trials]
    if not rates:
        return {"trials": 0}
    rate: Figures = {"trials": len(rates), "samples_per_s": median(rates)}
    if bounds := stats.interval(rates):
        rate |= {"low": bounds[0], "high": bounds[1]}
    if progress.prepared is not None:
        rate["mb_per_s"] = median(rates) * progress.prepared.sample_nbytes / 1e6
    fractions = [trial.limit_fraction for trial in progress.trials]
    known = [fraction for fraction in fractions if fraction is not None]
    return rate | ({"limit_fraction": median(known)} if known else {})
