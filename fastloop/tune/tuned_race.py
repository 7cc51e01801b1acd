"""The race of a tuning: its planned candidates run as one sweep; the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastloop.core.machine_load import summarize_loads
from fastloop.core.printable import plain_reason
from fastloop.core.result import Result
from fastloop.core.types import UsageError
from fastloop.sweep.measure import sweep_job
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest, job_names
from fastloop.sweep.resume import with_earlier_results
from fastloop.sweep.rounds import run_sweep
from fastloop.sweep.tracking import SweepTracker
from fastloop.tune.budget import Spending, TuneBudget
from fastloop.tune.candidates import YOURS
from fastloop.tune.outcome import TuneOutcome, names_of
from fastloop.tune.planning import TuneSettings
from fastloop.tune.race import RaceRules
from fastloop.tune.short_budget import name_larger_budget
from fastloop.tune.surrogate import make_surrogate
from fastloop.tune.tune_file import TuneFile
from fastloop.tune.tuned_sweep import PASSES, RaceSchedule


def run_race(
    requests: Sequence[JobRequest],
    file: TuneFile,
    settings: TuneSettings,
    spending: Spending,
    progress: Progress,
) -> TuneOutcome:
    """Race the requests as one sweep in the folder of the first request.

    The file says what is planned and, in a resumed race, what was spent. Raises UsageError if the
    present configuration can't be run.
    """
    first = requests[0]
    folder: Path = first.sweep_folder
    names = names_of(file.changes, YOURS)
    numbered = enumerate(zip(requests, job_names(requests), strict=True))
    jobs = [sweep_job(request, name, index) for index, (request, name) in numbered]
    # Finished trials of an interrupted race are not run again.
    if file.spent_s:
        jobs = with_earlier_results(jobs, folder)
    file.save(folder)
    schedule = RaceSchedule(
        surrogate=make_surrogate(names, file.changes, file.predicted),
        objective=settings.objective,
        rules=_choose_rules(settings.budget),
        spending=spending,
        file=file,
        folder=folder,
    )
    tracking = SweepTracker(first.tracker, folder)
    results = run_sweep(jobs, first.sweep, tracking, progress, schedule=schedule)
    # run_sweep has called the schedule, which sets the outcome or raises.
    assert schedule.outcome is not None
    return TuneOutcome(
        race=schedule.outcome,
        objective=settings.objective,
        label=f"{results[0].name}, {next(iter(first.job.benchmark))}",
        file=file,
        reasons=_find_reasons(names, results),
        peak_mib=_find_peaks(names, results),
        unobserved=schedule.unobserved,
        seconds=spending.seconds,
        trials=spending.trials,
        larger_budget=name_larger_budget(settings.budget, spending.seconds, file.trial_s),
        machine_load=summarize_loads([trial.load for each in results for trial in each.trials]),
    )


def _choose_rules(budget: TuneBudget) -> RaceRules:
    """The rules of a race with this budget."""
    # The passes after a race take time, but are no trials: other budgets need not keep room.
    return RaceRules(finishing=0 if budget.seconds is None else PASSES)


def _find_reasons(names: Sequence[str], results: Sequence[Result]) -> dict[str, str]:
    """The reasons why configurations have failed, by name."""
    return {
        name: result.status_reason
        for name, result in zip(names, results, strict=True)
        if result.status == "FAILED"
    }


def _find_peaks(names: Sequence[str], results: Sequence[Result]) -> dict[str, float]:
    """Measured peaks of memory in MiB, by name of an observed configuration."""
    peaks = {}
    for name, result in zip(names, results, strict=True):
        for attribution in result.attribution.values():
            if attribution.resources and attribution.resources.peak_pss_mib:
                peaks[name] = attribution.resources.peak_pss_mib
    return peaks


def check_outcome(outcome: TuneOutcome) -> TuneOutcome:
    """The outcome; raises UsageError if the present configuration has failed."""
    if reason := outcome.reasons.get(YOURS):
        raise UsageError(f"the present configuration has failed: {plain_reason(reason)}")
    return outcome
