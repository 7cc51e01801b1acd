"""Run a script in rounds, as it is and with changes, and estimate the gain of each change.

A round has one run of the script as it is, and one run with each change that fits into the time.
The gain of a change is the share of the loop's time that the change saves. `Attempts` has the runs
so far and chooses the changes of a round; `run_rounds` runs the rounds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastloop.core import stats
from fastloop.core.machine_load import LoadSummary, LoadWatch
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline
from fastloop.core.types import SignalExit, Unsupported
from fastloop.explain.attach.run_length import (
    COMPARISON_RUNS,
    FEWEST_ROUNDS,
    MOST_OF_ROUND,
    SLOWDOWN,
    Budget,
)
from fastloop.explain.attach.script_runner import ScriptRunner
from fastloop.explain.change import LEAST_GAIN, Change

MOST_ROUNDS = 10
"""Maximum number of rounds, even if the budget has time for more."""
MOST_RATIO = 1.5
"""A change is not run again if the loop has taken more than this many times as long with it. Other
changes then get the time. On a quiet machine, a change that saves time never takes so long. On a
busy machine, other programs may slow down a good change, which then has a single round."""


@dataclass(kw_only=True)
class Attempt:
    """A change with its runs so far."""

    change: Change
    run_s: float
    """Seconds of the last run, from its start to its end; before any run, the expected seconds."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Number of a round -> seconds of the loop in that round."""
    failure: str = ""
    """The reason why a run has failed; empty if none has."""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """The script as it is and with each change, with their runs so far."""

    baseline: Attempt
    """The script as it is."""
    changed: Sequence[Attempt]
    """The script with each change."""

    @property
    def longest_run_s(self) -> float:
        """Seconds of the longest run, from start to end, among the runs that would be repeated.

        These are the last runs of the script as it is, and with each change that has neither failed
        nor lost much time.
        """
        again = [each for each in self.changed if self._is_alive(each)]
        return max(each.run_s for each in (self.baseline, *again))

    def best(self) -> Attempt | None:
        """The change that saves most; None if none saves time for sure."""
        gains = [(each, self.gain(each)) for each in self.changed]
        sure = [(gain.value, each) for each, gain in gains if gain and is_sure(gain)]
        return max(sure, key=lambda found: found[0])[1] if sure else None

    def gain(self, attempt: Attempt) -> stats.Estimate | None:
        """The share of the loop's time that a change saves; None if it has failed or not run.

        The share is estimated from the rounds with a run of the change and one without it.
        """
        rounds = [number for number in attempt.seconds if number in self.baseline.seconds]
        new = [attempt.seconds[number] for number in rounds]
        base = [self.baseline.seconds[number] for number in rounds]
        ratio = stats.ratio_or_range(new, base)
        if ratio is None or attempt.failure:
            return None
        return stats.Estimate(
            value=1 - ratio.estimate,
            low=1 - ratio.high,
            high=1 - ratio.low,
            is_interval=ratio.is_interval,
        )

    def choose_round(self, number: int, remaining_s: float) -> list[Attempt]:
        """The changes to run in this round, the fastest so far first; empty to end the rounds.

        number: number of the round, from 1 on. remaining_s: seconds that are left. As many changes
        are chosen as leave time to run the best one in FEWEST_ROUNDS rounds altogether.
        """
        fastest = self._fastest()
        if number > 1 and (waiting := self._waiting_change(fastest, remaining_s)):
            return [waiting]
        most = MOST_OF_ROUND[min(number, len(MOST_OF_ROUND)) - 1]
        # First, time is reserved for the comparison of samples after the rounds. If no change fits
        # then, the comparison is given up in favour of this round.
        for reserved_s in (COMPARISON_RUNS * self.baseline.run_s, 0.0):
            for count in range(min(len(fastest), most), 0, -1):
                if self._cost_s(fastest, count, number) + reserved_s <= remaining_s:
                    return fastest[:count]
            # The comparison is not given up if enough rounds have run for an interval, and a change
            # saves time for sure.
            gains = [self.gain(each) for each in fastest]
            if number > FEWEST_ROUNDS and any(gain and is_sure(gain) for gain in gains):
                break
        return []

    def _waiting_change(self, fastest: Sequence[Attempt], remaining_s: float) -> Attempt | None:
        """The first change that has not run yet, if no other one saves time; otherwise None.

        None also if there is no time to run it in FEWEST_ROUNDS rounds.
        """
        gains = [self.gain(each) for each in fastest]
        if any(gain and gain.value >= LEAST_GAIN for gain in gains):
            return None
        waiting = [each for each in self.changed if not each.seconds and not each.failure]
        fits = FEWEST_ROUNDS * self._round_s(waiting[:1]) <= remaining_s
        return waiting[0] if waiting and fits else None

    def _cost_s(self, fastest: Sequence[Attempt], count: int, number: int) -> float:
        """Seconds of this round with `count` changes, and of later rounds with the fastest one.

        The later rounds are those that the fastest change still needs for FEWEST_ROUNDS rounds.
        """
        later = max(0, FEWEST_ROUNDS - 1 - len(fastest[0].seconds))
        needed_s = self._round_s(fastest[:count]) + later * self._round_s(fastest[:1])
        # Before round 1 only the first run is timed, and other runs may be slower. The margin keeps
        # further changes of round 1 from using up the time of the fastest change's last round.
        return SLOWDOWN * needed_s if number == 1 and count > 1 else needed_s

    def _round_s(self, changed: Sequence[Attempt]) -> float:
        """Expected seconds of a round with these changes."""
        return self.baseline.run_s + sum(each.run_s for each in changed)

    def _fastest(self) -> list[Attempt]:
        """The changes that still run, the one that has saved most in the rounds so far first.

        Changes that have failed, or have lost much time, do not run any more.
        """
        # A change that was left out of the last round does not come back.
        last = max((number for each in self.changed for number in each.seconds), default=None)
        running = [each for each in self.changed if last is None or last in each.seconds]
        return sorted(filter(self._is_alive, running), key=self._ratio)

    def _is_alive(self, attempt: Attempt) -> bool:
        """True unless the change has failed, or has prolonged the loop by more than MOST_RATIO."""
        return not attempt.failure and self._ratio(attempt) <= MOST_RATIO

    def _ratio(self, attempt: Attempt) -> float:
        """The loop's time with the change relative to the time without it; 0 if it is not known."""
        # A round has no run without a change if the budget has ended before that run was complete.
        base = self.baseline.seconds
        ratios = [each / base[number] for number, each in attempt.seconds.items() if number in base]
        return stats.median(ratios or [0.0])


def is_sure(gain: stats.Estimate) -> bool:
    """True if a change with this gain saves time for sure, and enough time to be worth it."""
    return gain.is_interval and gain.low > 0 and gain.value >= LEAST_GAIN


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """The limits of time for the runs in rounds, and for those that compare samples."""

    budget: Budget
    deadline: Deadline
    """The time at which the budget is spent."""
    longest_s: float
    """Maximum seconds of a run."""

    @property
    def next_run_s(self) -> float:
        """Seconds after which a run that begins now is killed; 0: no time is left."""
        return min(self.longest_s, max(0.0, self.deadline.remaining_s))


@dataclass(frozen=True, kw_only=True)
class EndOfRounds:
    """The reason why there was no further round, and the load of the machine until then.

    If both reasons are False, more time would have added no round.
    """

    is_out_of_time: bool
    """True if the budget had no time for a further round."""
    is_interrupted: bool
    """True if a signal has ended the last round; `is_out_of_time` is then True, too."""
    machine_load: LoadSummary | None
    """The load by other programs during the rounds; None if no time has passed."""


def run_rounds(
    runner: ScriptRunner, attempts: Attempts, limits: RunLimits, report: Callable[[str], None]
) -> EndOfRounds:
    """Run rounds until the deadline or a signal; each run is added to its attempt.

    report: called with a line of progress after each round. Raises Unsupported if the script fails
    without a change, and SignalExit if a signal arrives before any change can be judged.
    """
    load = LoadWatch()

    def end_round(number: int) -> None:
        load.end_stretch()
        budget_s = limits.budget.seconds
        spent_s = budget_s - limits.deadline.remaining_s
        report(f"round {number}: {spent_s:.0f} of at most {budget_s:.0f} s")

    is_interrupted = False
    try:
        is_out_of_time = _run_until_deadline(runner, attempts, limits, end_round)
    except SignalExit:
        # Rounds take minutes, so those that have ended are not thrown away.
        if not any(map(attempts.gain, attempts.changed)):
            raise
        # With more time there would have been further rounds.
        is_out_of_time = is_interrupted = True
    return EndOfRounds(
        is_out_of_time=is_out_of_time,
        is_interrupted=is_interrupted,
        machine_load=load.summary(),
    )


def _run_until_deadline(
    runner: ScriptRunner, attempts: Attempts, limits: RunLimits, end_round: Callable[[int], None]
) -> bool:
    """Run rounds until the deadline, each in a random order.

    end_round: called after each round, with its number. Returns True if there was no time for a
    further round. Raises Unsupported if the script fails without a change.
    """
    drawn = random.Random(0)
    for number in range(1, MOST_ROUNDS + 1):
        chosen = attempts.choose_round(number, limits.deadline.remaining_s)
        if not chosen:
            return bool(attempts.choose_round(number, math.inf))
        order = [attempts.baseline, *chosen]
        drawn.shuffle(order)
        for each in order:
            run_once(runner, each, number, limits)
            if attempts.baseline.failure:
                raise Unsupported(attempts.baseline.failure)
        end_round(number)
    # There is no further round, however much time is left.
    return False


def run_once(runner: ScriptRunner, attempt: Attempt, number: int, limits: RunLimits) -> None:
    """Run the script with the attempt's change, and note the time of the loop, or the failure.

    number: number of the round. No run begins after the deadline.
    """
    start_ns = now_ns()
    limit_s = limits.next_run_s
    if limit_s <= 0:
        return
    try:
        attempt.seconds[number] = runner.seconds(attempt.change, limit_s)
    except Unsupported as error:
        # If the deadline has passed, it has killed the run, and the change is not at fault.
        if not limits.deadline.is_over:
            attempt.failure = str(error)
    attempt.run_s = seconds_between(start_ns, now_ns())
