"""The race as the schedule of a sweep: its rounds are rounds of trials, and resume as those do."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastloop.core.result import Measurement
from fastloop.core.spans import now_ns
from fastloop.core.types import JobFailed, UsageError
from fastloop.explain.tune.budget import Spending
from fastloop.explain.tune.objective import PASS_COSTS, TRIAL_COSTS
from fastloop.explain.tune.race import RaceResult, RaceRules, race
from fastloop.explain.tune.surrogate import Surrogate
from fastloop.explain.tune.tune_file import TuneFile
from fastloop.sweep.job_state import JobState
from fastloop.sweep.merge_ranks import merge_passes
from fastloop.sweep.rounds import RunRound
from fastloop.trial.tasks import instrumentation_task


@dataclass(kw_only=True)
class RaceSchedule:
    """Races the jobs of a sweep, the first of which is the present configuration."""

    surrogate: Surrogate
    """Of the jobs, in their order."""
    objective: str
    rules: RaceRules
    spending: Spending
    file: TuneFile
    folder: Path
    outcome: RaceResult | None = None
    _states: dict[str, JobState] = field(default_factory=dict)
    _run_round: RunRound | None = None

    def __call__(self, states: Sequence[JobState], run_round: RunRound) -> Sequence[JobState]:
        """Run the race; returns the jobs whose gain is told, or the present one alone.

        Raises UsageError where the present configuration can't be run.
        """
        self._states, self._run_round = (
            dict(zip(self.surrogate.names, states, strict=True)),
            run_round,
        )
        for state in states:
            state.shadow_number = None  # it is not known which rounds a job will run
        try:
            outcome = race(self.surrogate, self._measure, self.spending.share, self.rules)
        except ValueError:
            reason = states[0].result.status_reason
            raise UsageError(f"the present configuration can't be run: {reason}") from None
        self.outcome = outcome
        finalists = dict.fromkeys((outcome.present, outcome.winner))
        return [self._states[name] for name in finalists]

    def _measure(self, names: Sequence[str], number: int) -> Mapping[str, float]:
        """The costs of a round; those of jobs that have run it in an earlier session are known."""
        assert self._run_round is not None
        order = [*names]
        if number:
            random.Random(number).shuffle(order)
        states = {name: self._states[name] for name in order}
        if self.objective in TRIAL_COSTS:
            self._run_round([*states.values()], number)
            costs = {name: self._find_cost(states[name], number) for name in names}
        else:  # a trial of each is enough to compare its data
            new = [state for state in states.values() if state.prepared is None]
            self._run_round(new, number)
            costs = {name: self._run_pass(name, number) for name in order}
        measured = {name: cost for name, cost in costs.items() if cost is not None}
        self._note_spending(number, len(measured))
        return measured

    def _find_cost(self, state: JobState, number: int) -> float | None:
        if not state.is_running:
            return None
        trials = [trial for trial in state.result.trials if trial.number == number]
        windows: list[Measurement] = [each for t in trials for each in t.benchmarks.values()]
        return TRIAL_COSTS[self.objective](windows[0]) if windows else None

    def _run_pass(self, name: str, number: int) -> float | None:
        """The cost by an instrumented pass, or by that of an earlier session."""
        state, known = self._states[name], self.file.costs.setdefault(name, {})
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

    def _note_spending(self, number: int, trials: int) -> None:
        """Write what the rounds have cost; of a round of an earlier session take what it has."""
        self.spending.trials += trials
        if number < len(self.file.spent_s):
            self.spending.before_s, self.spending.begun_ns = self.file.spent_s[number], now_ns()
            return
        self.file.spent_s.append(self.spending.seconds)
        self.file.save(self.folder)
