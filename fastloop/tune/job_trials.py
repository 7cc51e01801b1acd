"""Run the trials of a race among configurations of a job, each configuration as a job of a sweep.

`JobTrials.measure` is one trial of the race. The objective decides where its cost comes from: from
a trial of the sweep, or from an instrumented pass, an epoch that records the waits of its loop. A
race that is resumed is repeated from its start: trials and passes that an earlier session has run
are read from its files and not run again. A session is one run of the command.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastloop.core.types import FailureKind, JobFailed
from fastloop.sweep.job_state import JobState
from fastloop.sweep.merge_ranks import merge_passes
from fastloop.sweep.run_rounds import RunRound
from fastloop.trial.tasks import instrumentation_task
from fastloop.tune.budget import ENDING_OF_JOB_S, Spending
from fastloop.tune.objective import PASS_COSTS, TRIAL_COSTS
from fastloop.tune.race import YOURS, NoRoomError
from fastloop.tune.tune_file import TuneFile

SHORTEST_LIMIT_S = 5.0
"""Minimum time limit of a trial in seconds: a slow start of its process must not end the trial."""


@dataclass(kw_only=True)
class JobTrials:
    """The trials of a race: runs them within the budget, and finds their costs."""

    states: Mapping[str, JobState]
    """The jobs, by the names of their configurations."""
    run_round: RunRound
    """Runs trials of the given jobs as a round of the sweep."""
    objective: str
    """The name of the cost, see objective.py."""
    spending: Spending
    """The budget, and the time and the trials that were spent."""
    file: TuneFile
    """The content of tune.json, which is written after each trial."""
    folder: Path
    """The folder of tune.json."""
    user_limit_s: float = field(init=False)
    """The user's own limit of a trial, in seconds."""
    ending_s: float = field(init=False)
    """Seconds that are reserved for reporting the outcome, besides the time for each job that has
    begun."""
    _orders: dict[int, list[str]] = field(default_factory=dict)
    """Names in the order of their trials, by number of the round."""

    def __post_init__(self) -> None:
        self.user_limit_s = self.states[YOURS].entry.job.trial_timeout_s
        self.ending_s = self.spending.ending_s

    def measure(self, name: str, number: int, room: float) -> float | None:
        """Measure one trial of a configuration; returns its cost, or None if it has failed.

        number: the number of the round. room: the share of the budget that preparing the data and
        the trial may take. Raises NoRoomError if the budget has stopped a trial of the present
        configuration.
        """
        state = self.states[name]
        before_s = self.spending.seconds_used
        self._reserve_ending()
        self._orders.setdefault(number, []).append(name)
        self._prepare_within(name, room)
        # A job loses its earlier trials if, for example, code has changed. The costs of its passes
        # then belong to the old code, so they are removed, too.
        if not state.result.trials:
            self.file.costs.pop(name, None)
        is_new = self._is_new(name, number)
        cost = self._run_trial(name, number)
        # If the data of a configuration could not be prepared, there was no trial.
        if state.prepared is not None:
            self.spending.add_trial(name, self.spending.seconds_used - before_s)
        self._note_spending(name, number, is_new=is_new)
        if cost is None and name == YOURS and self.is_present_stopped:
            raise NoRoomError
        return cost

    @property
    def is_present_stopped(self) -> bool:
        """True if the budget has stopped a trial of the present configuration.

        A trial that the user's own limit has stopped does not count.
        """
        state = self.states[YOURS]
        is_stopped = state.result.failure_kind == FailureKind.TIMEOUT
        return is_stopped and state.entry.job.trial_timeout_s < self.user_limit_s

    def limit_time(self, name: str, seconds: float) -> None:
        """Limit the time of preparing the configuration's data, of its trials and of its passes.

        The user's own limit also applies to trials and passes. seconds: the limit, raised to
        SHORTEST_LIMIT_S if it is below that; infinite: only the user's own limit applies.
        """
        state = self.states[name]
        limit_s = max(SHORTEST_LIMIT_S, seconds)
        job = replace(state.entry.job, trial_timeout_s=min(self.user_limit_s, limit_s))
        most_prepare_s = None if math.isinf(limit_s) else limit_s
        state.entry = replace(state.entry, job=job, most_prepare_s=most_prepare_s)

    def record_rounds(self) -> None:
        """Record in each job's result the order in which the jobs of its rounds ran.

        A trial itself knows only its own job.
        """
        for name, state in self.states.items():
            if state.is_running and state.prepared is not None:
                orders = [order for order in self._orders.values() if name in order]
                rounds = [[self.states[each].result.name for each in order] for order in orders]
                state.update(rounds=rounds)

    def _reserve_ending(self) -> None:
        """Reserve time for reporting the outcome, which is longer with each job that has begun."""
        begun = sum(each.has_begun for each in self.states.values())
        self.spending.ending_s = self.ending_s + ENDING_OF_JOB_S * begun

    def _prepare_within(self, name: str, room: float) -> None:
        """Prepare the data before the configuration's first trial of a session, and limit times.

        If the budget is a time, the preparation and the trial together may take the share `room` of
        the budget. Each of the two may take SHORTEST_LIMIT_S even if that is more.
        """
        state = self.states[name]
        before_s = self.spending.seconds_used
        budget_s = self.spending.budget.seconds
        room_s = math.inf if budget_s is None else room * budget_s
        self.limit_time(name, room_s)
        if state.prepared is None and not state.has_begun:
            self.run_round([state], None)
            # Writing a store has used a part of the room, and the trial gets the rest.
            self.limit_time(name, room_s - (self.spending.seconds_used - before_s))

    def _is_new(self, name: str, number: int) -> bool:
        """True if the configuration can run, and its trial or pass of that round has not run yet,
        either in this session or in an earlier one."""
        state = self.states[name]
        has_run = number in state.trial_numbers or number in self.file.costs.get(name, {})
        return state.is_running and not has_run

    def _run_trial(self, name: str, number: int) -> float | None:
        """Run a trial or, if the objective is the cost of a pass, a pass.

        Before the first pass of a configuration, a trial runs as well. Returns the cost, or None if
        the configuration has failed. number: the number of the round.
        """
        state = self.states[name]
        has_pass = self.objective in PASS_COSTS
        # Passes do not compare the data of the configuration, but trials do. One trial therefore
        # runs before the first pass.
        if state.is_running and not (has_pass and state.result.trials):
            self.run_round([state], number)
        return self._run_pass(name, number) if has_pass else self._find_trial_cost(state, number)

    def _find_trial_cost(self, state: JobState, number: int) -> float | None:
        """The cost of the job's trial in that round; None if the job has failed."""
        if not state.is_running:
            return None
        trials = [trial for trial in state.result.trials if trial.number == number]
        windows = [window for trial in trials for window in trial.benchmarks.values()]
        return TRIAL_COSTS[self.objective](windows[0]) if windows else None

    def _run_pass(self, name: str, number: int) -> float | None:
        """Run an instrumented pass of a configuration, unless an earlier session has run it.

        Returns the cost, or None if the configuration has failed. number: the number of the round.
        """
        state = self.states[name]
        costs = self.file.costs.setdefault(name, {})
        if not state.is_running or state.prepared is None:
            return None
        if number not in costs:
            entry = state.entry
            benchmark = next(iter(entry.job.benchmark))
            task = instrumentation_task(entry.index, entry.job, state.prepared, benchmark)
            try:
                answers = entry.launcher.call_ranks(task, timeout_s=entry.job.trial_timeout_s)
            except JobFailed as error:
                state.fail(error.failure)
                return None
            costs[number] = PASS_COSTS[self.objective](merge_passes(answers))
        return costs[number]

    def _note_spending(self, name: str, number: int, *, is_new: bool) -> None:
        """Write the seconds that were spent so far to tune.json.

        If an earlier session has run this trial, the spending continues instead from the seconds
        that the earlier session has written. With the same costs and the same spending, a resumed
        race makes the same choices up to the interruption.
        """
        noted_s = self.file.spent_s.get(name, {}).get(number)
        if noted_s is not None and not is_new:
            self.spending.continue_from(noted_s)
            return
        self.file.note_spent(name, number, self.spending.seconds_used)
        self.file.save(self.folder)
