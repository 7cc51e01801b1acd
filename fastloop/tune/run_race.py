"""Run the race among a job's planned candidates as a sweep: `run_race` returns its outcome.

A sweep is the set of jobs that one command measures together. Its schedule decides which job runs
next. Here the schedule is the race (race.py), so each round of the race is a round of the sweep's
trials (job_trials.py), and an interrupted race resumes as any sweep does.

After the race, up to two jobs get passes, which are epochs outside of trials. If a faster
configuration was found, its job comes first: one pass compares all of its data, and another one
observes its memory. Then follows the present configuration, the user's own, if there is time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastloop.core.machine_load import summarize_loads
from fastloop.core.result import Result
from fastloop.core.text import plain_reason
from fastloop.core.types import UsageError
from fastloop.sweep.job_names import job_names
from fastloop.sweep.job_state import JobState
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest
from fastloop.sweep.resume import with_earlier_results
from fastloop.sweep.run_rounds import RunRound, run_sweep
from fastloop.sweep.sweep_job import SweepJob, sweep_job
from fastloop.sweep.tracking import SweepTracker
from fastloop.tune.budget import PASSES_AFTER_RACE, Spending
from fastloop.tune.job_trials import JobTrials
from fastloop.tune.outcome import TuneOutcome, names_of
from fastloop.tune.planning import TuneSettings
from fastloop.tune.race import (
    YOURS,
    NoRoomError,
    PresentFailedError,
    RaceResult,
    RaceRules,
    race,
)
from fastloop.tune.race_time import name_larger_budget
from fastloop.tune.raced_candidates import choose_simplest
from fastloop.tune.surrogate import Surrogate
from fastloop.tune.tune_file import TuneFile


def run_race(
    requests: Sequence[JobRequest],
    file: TuneFile,
    settings: TuneSettings,
    spending: Spending,
    progress: Progress,
) -> TuneOutcome:
    """Race the requests as one sweep in the folder of the first request.

    requests: the planned jobs, the present configuration first. file: the plan and, in a resumed
    race, the seconds that were spent. Raises UsageError if the present configuration can't be run.
    """
    first = requests[0]
    folder: Path = first.sweep_folder
    names = names_of(file.changes, YOURS)
    jobs = _sweep_jobs(requests, file)
    file.save(folder)
    schedule = RaceSchedule(
        surrogate=Surrogate(names=names, changes=file.changes, predicted=file.predicted),
        objective=settings.objective,
        rules=_choose_rules(requests, file, spending),
        spending=spending,
        file=file,
        folder=folder,
    )
    tracking = SweepTracker(first.tracker, folder)
    results = run_sweep(jobs, first.sweep, tracking, progress, schedule=schedule)
    by_name = dict(zip(names, results, strict=True))
    return TuneOutcome(
        race=schedule.result,
        objective=settings.objective,
        label=f"{results[0].name}, {next(iter(first.job.benchmark))}",
        file=file,
        reasons=_find_reasons(by_name, is_stopped=schedule.trials.is_present_stopped),
        peak_mib=_find_peaks(by_name),
        unobserved=schedule.unobserved,
        seconds_used=spending.seconds_used,
        trials=spending.num_trials,
        larger_budget=name_larger_budget(spending.budget, spending.seconds_used, file.trial_s),
        machine_load=summarize_loads([trial.load for each in results for trial in each.trials]),
    )


def _sweep_jobs(requests: Sequence[JobRequest], file: TuneFile) -> list[SweepJob]:
    """The jobs of the sweep; in a resumed race with the results that they have so far."""
    numbered = enumerate(zip(requests, job_names(requests), strict=True))
    jobs = [sweep_job(request, name, index) for index, (request, name) in numbered]
    # Finished trials of an interrupted race are not run again.
    return with_earlier_results(jobs, requests[0].sweep_folder) if file.spent_s else jobs


def _choose_rules(requests: Sequence[JobRequest], file: TuneFile, spending: Spending) -> RaceRules:
    """Choose the rules of the race: the simplest change to each loader is tried first."""
    names = names_of(file.changes, YOURS)
    jobs = [request.job for request in requests]
    simplest = choose_simplest(jobs, file.changes, file.predicted)
    # The passes after a race take time, but they are not trials. A budget that counts trials
    # therefore need not keep room for the passes.
    finishing = 0 if spending.budget.seconds is None else PASSES_AFTER_RACE
    return RaceRules(finishing=finishing, first=tuple(names[place] for place in simplest))


@dataclass(kw_only=True)
class RaceSchedule:
    """The schedule of a sweep that races its jobs.

    The sweep calls the schedule once. The first job has the present configuration.
    """

    surrogate: Surrogate
    """The model that predicts the jobs' costs; its names are in the order of the jobs."""
    objective: str
    """The name of the cost, see objective.py."""
    rules: RaceRules
    """The rules of the race."""
    spending: Spending
    """The budget, and the time and the trials that were spent."""
    file: TuneFile
    """The content of tune.json: the plan, the costs of passes and the time that was spent."""
    folder: Path
    """The folder of the sweep and of tune.json."""
    trials: JobTrials = field(init=False)
    """The trials of the race; set when the sweep calls the schedule."""
    result: RaceResult = field(init=False)
    """The result of the race; set when the race has ended."""
    unobserved: list[str] = field(default_factory=list)
    """Names of configurations that got no pass after the race, because no time was left."""

    def __call__(self, states: Sequence[JobState], run_round: RunRound) -> Iterator[JobState]:
        """Run the race, and return an iterator over the jobs that get passes after it.

        Raises UsageError if the present configuration can't be run.
        """
        # A shadow repeats one trial of a job, to compare the data. This trial is usually drawn
        # among all of the job's trials, but their number is not known here. So no shadow runs
        # during the race. The passes after the race begin with a shadow of the job's last trial.
        for state in states:
            state.shadow_number = None
        # A round without a number only prepares the data. If the first trial had to prepare it, the
        # race would expect later trials to take as long as both together.
        run_round(states[:1], None)
        self._begin_spending()
        self.trials = JobTrials(
            states=dict(zip(self.surrogate.names, states, strict=True)),
            run_round=run_round,
            objective=self.objective,
            spending=self.spending,
            file=self.file,
            folder=self.folder,
        )
        self.result = self._race()
        self.trials.record_rounds()
        return self._jobs_after_race()

    def _begin_spending(self) -> None:
        """Set the time spent so far to that at the beginning of the race, and reserve its ending.

        A resumed race begins with the time at which the interrupted race began.
        """
        if self.file.raced_from_s is None:
            self.file.raced_from_s = self.spending.seconds_used
        self.spending.continue_from(self.file.raced_from_s)
        # The time for reporting the outcome is reserved before the race. If it were reserved during
        # the first trial, it would count as a part of that trial's price.
        self.spending.ending_s = self.spending.find_ending_s()

    def _race(self) -> RaceResult:
        """Race the jobs. Raises UsageError if the present configuration can't be run."""
        try:
            return race(self.surrogate, self.trials.measure, self.spending.share_used, self.rules)
        except NoRoomError:
            raise UsageError(self._describe_no_room()) from None
        except PresentFailedError:
            reason = plain_reason(self.trials.states[YOURS].result.status_reason)
            raise UsageError(f"the present configuration can't be run: {reason}") from None

    def _describe_no_room(self) -> str:
        """The reason for an error if no trial of the present configuration has ended in time."""
        spending = self.spending
        limit_s = self.trials.states[YOURS].entry.job.trial_timeout_s
        trial_s = max(self.file.trial_s, min(limit_s, spending.seconds_used))
        larger = name_larger_budget(spending.budget, spending.seconds_used, trial_s)
        spent = f"a trial of yours did not end within {spending.seconds_used:.0f} s"
        given = f"budget={spending.budget.seconds:g}s is too short"
        allowed = f"allowed: for example {larger}, with resume=last to go on from here"
        return f"{given}: {spent}; {allowed}"

    def _jobs_after_race(self) -> Iterator[JobState]:
        """Yield the winner if it is faster, and then the present configuration if there is time.

        The sweep runs the passes of each job before it asks for the next job.
        """
        trials, spending, result = self.trials, self.spending, self.result
        # A configuration is recommended only if all of its data was compared, in a pass. The time
        # limit of this pass is at least twice the longest trial, because the machine may have
        # become busier.
        if result.is_faster:
            longest_s = spending.longest_trial_s(result.winner)
            trials.limit_time(result.winner, max(spending.remaining_s, 2 * longest_s))
            yield trials.states[result.winner]
        if spending.has_time(PASSES_AFTER_RACE * spending.longest_trial_s(result.present)):
            yield trials.states[result.present]
        else:
            self.unobserved.append(result.present)


def _find_reasons(results: Mapping[str, Result], *, is_stopped: bool) -> dict[str, str]:
    """The reasons why configurations have failed, by name.

    is_stopped: True if the budget has stopped the present configuration, which then has not failed.
    """
    return {
        name: result.status_reason
        for name, result in results.items()
        if result.status == "FAILED" and not (is_stopped and name == YOURS)
    }


def _find_peaks(results: Mapping[str, Result]) -> dict[str, float]:
    """Measured peaks of memory in MiB, by name; only passes after the race observe memory."""
    peaks = {}
    for name, result in results.items():
        for attribution in result.attribution.values():
            if attribution.resources and attribution.resources.peak_pss_mib:
                peaks[name] = attribution.resources.peak_pss_mib
    return peaks
