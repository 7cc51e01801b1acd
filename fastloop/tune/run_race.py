"""Run the race among a job's planned candidates as a sweep: `run_race` returns its outcome.

A sweep is the set of jobs that one command measures together. Its schedule decides which job runs
next. Here the schedule is the race (race.py), so each round of the race is a round of the sweep's
trials, and an interrupted race resumes as any sweep does. A *pass* is an epoch outside of trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastloop.core.machine_load import summarize_loads
from fastloop.core.result import Measurement, Result
from fastloop.core.text import plain_reason
from fastloop.core.types import FailureKind, JobFailed, UsageError
from fastloop.sweep.job_names import job_names
from fastloop.sweep.job_state import JobState
from fastloop.sweep.measure import sweep_job
from fastloop.sweep.merge_ranks import merge_passes
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest
from fastloop.sweep.resume import with_earlier_results
from fastloop.sweep.run_rounds import RunRound, run_sweep
from fastloop.sweep.tracking import SweepTracker
from fastloop.trial.tasks import instrumentation_task
from fastloop.tune.budget import ENDING_OF_JOB_S, PASSES_AFTER_RACE, Spending, TuneBudget
from fastloop.tune.candidates import choose_simplest
from fastloop.tune.objective import PASS_COSTS, TRIAL_COSTS
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
from fastloop.tune.surrogate import Surrogate, make_surrogate
from fastloop.tune.tune_file import TuneFile

SHORTEST_LIMIT_S = 5.0
"""Minimum time limit of a trial, so that a slow start of its process does not end it."""


@dataclass(kw_only=True)
class RaceSchedule:
    """The schedule of a sweep that races its jobs; the first job is the present configuration."""

    surrogate: Surrogate
    """The surrogate of the jobs, in their order."""
    objective: str
    """The name of the cost, see objective.py."""
    rules: RaceRules
    """The rules of the race."""
    spending: Spending
    """The budget and what is spent of it."""
    file: TuneFile
    """Plan, costs and spending, saved after each trial."""
    folder: Path
    """The sweep's folder, which has the file."""
    trials: _Trials | None = None
    """None until the race begins."""
    outcome: RaceResult | None = None
    """None until the race has ended."""
    unobserved: list[str] = field(default_factory=list)
    """Names of configurations that got no pass after the race, because no time was left."""

    def __call__(self, states: Sequence[JobState], run_round: RunRound) -> Iterator[JobState]:
        """Run the race, and yield the jobs that get passes after it, as long as there is time.

        Raises UsageError if the present configuration can't be run.
        """
        timeout_s = states[0].entry.job.trial_timeout_s
        # A shadow repeats one trial of a job, to compare the data. This trial is drawn among all of
        # the job's trials, and their number is not known here, so there are no shadows. Instead,
        # the winner's data is compared in a pass after the race.
        for state in states:
            state.shadow_number = None
        # This round without a number only prepares the data. Otherwise the first trial would
        # prepare it, and the time of both would be taken for the price of later trials.
        run_round(states[:1], None)
        if self.file.raced_from_s is None:
            self.file.raced_from_s = self.spending.seconds_used
        self.spending.continue_from(self.file.raced_from_s)
        # The time for the ending is reserved before the race. A change during the first trial would
        # count as a part of that trial's price.
        self.spending.ending_s = self.spending.find_ending_s()
        trials = self.trials = _Trials(
            states=dict(zip(self.surrogate.names, states, strict=True)),
            run_round=run_round,
            objective=self.objective,
            spending=self.spending,
            file=self.file,
            folder=self.folder,
            timeout_s=timeout_s,
            ending_s=self.spending.ending_s,
        )
        try:
            self.outcome = race(
                self.surrogate, trials.measure, self.spending.share_used, self.rules
            )
        except NoRoomError:
            raise UsageError(self._describe_no_room(trials)) from None
        except PresentFailedError:
            reason = plain_reason(states[0].result.status_reason)
            raise UsageError(f"the present configuration can't be run: {reason}") from None
        trials.note_rounds()
        return self._finalists(trials, self.outcome)

    def _describe_no_room(self, trials: _Trials) -> str:
        """The reason for an error if no trial of the present configuration has ended in time."""
        spending = self.spending
        trial_s = trials.states[YOURS].entry.job.trial_timeout_s
        trial_s = max(self.file.trial_s, min(trial_s, spending.seconds_used))
        larger = name_larger_budget(spending.budget, spending.seconds_used, trial_s)
        spent = f"a trial of yours did not end within {spending.seconds_used:.0f} s"
        given = f"budget={spending.budget.seconds:g}s is too short"
        allowed = f"allowed: for example {larger}, with resume=last to go on from here"
        return f"{given}: {spent}; {allowed}"

    def _finalists(self, trials: _Trials, outcome: RaceResult) -> Iterator[JobState]:
        """Yield the winner and the present configuration, for the passes after the race."""
        # A configuration is recommended only if all of its data was compared, in a pass. The time
        # limit of this pass is at least twice the longest trial, because the machine may have
        # become busier.
        if outcome.is_faster:
            longest_s = self.spending.longest_trial_s(outcome.winner)
            trials.limit_s(outcome.winner, max(self.spending.remaining_s, 2 * longest_s))
            yield trials.states[outcome.winner]
        if self.spending.has_time(
            PASSES_AFTER_RACE * self.spending.longest_trial_s(outcome.present)
        ):
            yield trials.states[outcome.present]
        else:
            self.unobserved.append(outcome.present)


@dataclass(kw_only=True)
class _Trials:
    """Runs the trials of a race, and finds their costs."""

    states: Mapping[str, JobState]
    """The jobs, by the names of their configurations."""
    run_round: RunRound
    """Runs trials of the given jobs as a round of the sweep."""
    objective: str
    """The name of the cost, see objective.py."""
    spending: Spending
    file: TuneFile
    """Plan, costs and spending, saved after each trial."""
    folder: Path
    timeout_s: float
    """The user's own limit of a trial, in seconds."""
    ending_s: float
    """Seconds that are reserved for reporting the outcome."""
    _orders: dict[int, list[str]] = field(default_factory=dict)
    """Names in the order of their trials, by round."""

    @property
    def is_present_stopped(self) -> bool:
        """True if a trial of the present configuration was stopped by the budget, and not by the
        user's own limit."""
        state = self.states[YOURS]
        is_stopped = state.result.failure_kind == FailureKind.TIMEOUT
        return is_stopped and state.entry.job.trial_timeout_s < self.timeout_s

    def note_rounds(self) -> None:
        """Add to each job's result the order in which the jobs of its rounds ran; a trial knows
        only its own job."""
        for name, state in self.states.items():
            if state.is_running and state.prepared is not None:
                orders = [order for order in self._orders.values() if name in order]
                names = [[self.states[each].result.name for each in order] for order in orders]
                state.update(rounds=names)

    def measure(self, name: str, number: int, room: float) -> float | None:
        """Measure a trial, unless an earlier session has run it; returns its cost, or None if it
        failed.

        A session is one run of the command; a resumed race has several. room: the share of the
        budget that the trial may take. Raises NoRoomError if the budget has stopped a trial of the
        present configuration.
        """
        state = self.states[name]
        before_s = self.spending.seconds_used
        begun = sum(each.has_begun for each in self.states.values())
        self.spending.ending_s = self.ending_s + ENDING_OF_JOB_S * begun
        self._orders.setdefault(number, []).append(name)
        self._prepare_within(name, room)
        # A job can lose its earlier trials, for example because code has changed. It then begins
        # again, without the costs of its passes, which are those of the old code.
        if not state.result.trials:
            self.file.costs.pop(name, None)
        is_known = number in state.trial_numbers or str(number) in self.file.costs.get(name, {})
        is_measured_now = state.is_running and not is_known
        if self.objective in TRIAL_COSTS:
            if state.is_running:
                self.run_round([state], number)
            cost = self._find_cost(state, number)
        else:
            # The cost is that of an instrumented pass. One trial runs before the passes, because it
            # compares the data of the configuration, which these passes don't.
            if state.is_running and not state.result.trials:
                self.run_round([state], number)
            cost = self._run_pass(name, number)
        # If the data of a configuration could not be prepared, there was no trial.
        if state.prepared is not None:
            self.spending.add_trial(name, self.spending.seconds_used - before_s)
        self._note_spending(name, str(number), is_measured_now=is_measured_now)
        if cost is None and name == YOURS and self.is_present_stopped:
            raise NoRoomError
        return cost

    def _prepare_within(self, name: str, room: float) -> None:
        """Prepare the configuration's data if this is its first trial, and set its time limits.

        If the budget is a time, preparing and the trial after it take at most the share `room` of
        the budget, but each of them may take SHORTEST_LIMIT_S.
        """
        state = self.states[name]
        before_s = self.spending.seconds_used
        budget_s = self.spending.budget.seconds
        room_s = math.inf if budget_s is None else room * budget_s
        self.limit_s(name, room_s)
        if state.prepared is None and not state.has_begun:
            self.run_round([state], None)
            # Writing a store has used a part of the room, and the trial gets the rest.
            self.limit_s(name, room_s - (self.spending.seconds_used - before_s))

    def limit_s(self, name: str, seconds: float) -> None:
        """Limit the time of preparing the configuration's data, of its trials and of its passes;
        the user's own limit also applies to trials and passes."""
        state = self.states[name]
        limit_s = max(SHORTEST_LIMIT_S, seconds)
        job = replace(state.entry.job, trial_timeout_s=min(self.timeout_s, limit_s))
        most_prepare_s = None if math.isinf(limit_s) else limit_s
        state.entry = replace(state.entry, job=job, most_prepare_s=most_prepare_s)

    def _find_cost(self, state: JobState, number: int) -> float | None:
        """The cost of the job's trial in that round; None if the job has failed."""
        if not state.is_running:
            return None
        trials = [trial for trial in state.result.trials if trial.number == number]
        windows: list[Measurement] = [each for t in trials for each in t.benchmarks.values()]
        return TRIAL_COSTS[self.objective](windows[0]) if windows else None

    def _run_pass(self, name: str, number: int) -> float | None:
        """Run an instrumented pass, an epoch that records its waits, unless an earlier session has
        run it; returns its cost, or None if it failed."""
        state = self.states[name]
        known = self.file.costs.setdefault(name, {})
        if not state.is_running or state.prepared is None:
            return None
        if str(number) not in known:
            entry = state.entry
            benchmark = next(iter(entry.job.benchmark))
            task = instrumentation_task(entry.index, entry.job, state.prepared, benchmark)
            try:
                answers = entry.launcher.call_ranks(task, timeout_s=entry.job.trial_timeout_s)
            except JobFailed as error:
                state.fail(error.failure)
                return None
            known[str(number)] = PASS_COSTS[self.objective](merge_passes(answers))
        return known[str(number)]

    def _note_spending(self, name: str, number: str, *, is_measured_now: bool) -> None:
        """Write the seconds spent so far. If an earlier session has run this trial, continue from
        the seconds that the earlier session wrote."""
        spent_s = self.file.spent_s.get(name, {})
        # A resumed race is repeated from its start. With the same costs and the same spending, it
        # makes the same choices up to the interruption.
        if number in spent_s and not is_measured_now:
            self.spending.continue_from(spent_s[number])
            return
        self.file.note_spent(name, number, self.spending.seconds_used)
        self.file.save(self.folder)


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
    numbered = enumerate(zip(requests, job_names(requests), strict=True))
    jobs = [sweep_job(request, name, index) for index, (request, name) in numbered]
    # Finished trials of an interrupted race are not run again.
    if file.spent_s:
        jobs = with_earlier_results(jobs, folder)
    file.save(folder)
    raced = [request.job for request in requests]
    simplest = choose_simplest(raced, file.changes, file.predicted)
    schedule = RaceSchedule(
        surrogate=make_surrogate(names, file.changes, file.predicted),
        objective=settings.objective,
        rules=_choose_rules(settings.budget, [names[place] for place in simplest]),
        spending=spending,
        file=file,
        folder=folder,
    )
    tracking = SweepTracker(first.tracker, folder)
    results = run_sweep(jobs, first.sweep, tracking, progress, schedule=schedule)
    # run_sweep has called the schedule, which sets both or raises.
    assert schedule.trials is not None
    assert schedule.outcome is not None
    return TuneOutcome(
        race=schedule.outcome,
        objective=settings.objective,
        label=f"{results[0].name}, {next(iter(first.job.benchmark))}",
        file=file,
        reasons=_find_reasons(names, results, is_stopped=schedule.trials.is_present_stopped),
        peak_mib=_find_peaks(names, results),
        unobserved=schedule.unobserved,
        seconds_used=spending.seconds_used,
        trials=spending.num_trials,
        larger_budget=name_larger_budget(settings.budget, spending.seconds_used, file.trial_s),
        machine_load=summarize_loads([trial.load for each in results for trial in each.trials]),
    )


def _choose_rules(budget: TuneBudget, first: Sequence[str]) -> RaceRules:
    """Choose the rules of a race with this budget. first: names that run first."""
    # The passes after a race take time, but are not trials. So a budget that counts trials need not
    # keep room for them.
    finishing = 0 if budget.seconds is None else PASSES_AFTER_RACE
    return RaceRules(finishing=finishing, first=tuple(first))


def _find_reasons(
    names: Sequence[str], results: Sequence[Result], *, is_stopped: bool
) -> dict[str, str]:
    """The reasons why configurations have failed, by name.

    is_stopped: True if the budget has stopped the present configuration, which then has not failed.
    """
    return {
        name: result.status_reason
        for name, result in zip(names, results, strict=True)
        if result.status == "FAILED" and not (is_stopped and name == YOURS)
    }


def _find_peaks(names: Sequence[str], results: Sequence[Result]) -> dict[str, float]:
    """Measured peaks of memory in MiB, by name; only passes after the race observe memory."""
    peaks = {}
    for name, result in zip(names, results, strict=True):
        for attribution in result.attribution.values():
            if attribution.resources and attribution.resources.peak_pss_mib:
                peaks[name] = attribution.resources.peak_pss_mib
    return peaks
