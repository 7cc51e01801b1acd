"""Run a script in rounds, as it is and with changes: choose the runs that fit into the time, and
estimate the share of the loop's time that each change saves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline
from fastloop.core.types import Unsupported
from fastloop.explain.attach.run_length import (
    COMPARISON_RUNS,
    FEWEST_ROUNDS,
    MOST_OF_ROUND,
    SLOWDOWN,
)
from fastloop.explain.attach.script_runner import ScriptRunner
from fastloop.explain.change import LEAST_GAIN, Change

MOST_ROUNDS = 10
"""Maximum number of rounds, even if the budget has time for more."""
MOST_RATIO = 1.5
"""A change with which the loop has taken more than this many times as long is not run again, so
that the others get its time. On a quiet machine a change that saves time does not take so long; on
a busy one a burst of other work may drop it, which the table shows by its single round."""


@dataclass(kw_only=True)
class Attempt:
    """A change with its runs so far."""

    change: Change
    run_s: float
    """Seconds of the last run, from its start to its end."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of the loop by the number of the round."""
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """The script as it is and with each change, with their runs so far."""

    baseline: Attempt
    """The script as it is."""
    changed: Sequence[Attempt]

    @property
    def longest_run_s(self) -> float:
        """Seconds of the longest run, from start to end, of the script as it is and with the
        changes that would run again."""
        again = [each for each in self.changed if self._is_alive(each)]
        return max(each.run_s for each in (self.baseline, *again))

    def best(self) -> Attempt | None:
        """The change that saves most; None if none saves time for sure."""
        gains = [(each, self.gain(each)) for each in self.changed]
        sure = [(gain.value, each) for each, gain in gains if gain and is_sure(gain)]
        return max(sure, key=lambda found: found[0])[1] if sure else None

    def gain(self, attempt: Attempt) -> stats.Estimate | None:
        """The share of the loop's time that the change saves, over the rounds that both have."""
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
        """The changes to run in this round, the fastest so far first.

        There are as many as leave time to run the best one in FEWEST_ROUNDS rounds altogether; the
        list is empty if there is no time for a single one.
        """
        fastest = self._fastest()
        if number > 1 and (waiting := self._waiting_change(fastest, remaining_s)):
            return [waiting]
        most = MOST_OF_ROUND[min(number, len(MOST_OF_ROUND)) - 1]
        # Drop the comparison of the samples if there is no time for it and the rounds.
        for reserved_s in (COMPARISON_RUNS * self.baseline.run_s, 0.0):
            for count in range(min(len(fastest), most), 0, -1):
                if self._cost_s(fastest, count, number) + reserved_s <= remaining_s:
                    return fastest[:count]
            # Enough rounds have been run for an interval. If a change is sure to help, a further
            # one is not worth the comparison of its samples.
            gains = [self.gain(each) for each in fastest]
            if number > FEWEST_ROUNDS and any(gain and is_sure(gain) for gain in gains):
                break
        return []

    def _waiting_change(self, fastest: Sequence[Attempt], remaining_s: float) -> Attempt | None:
        """A change that has not run for lack of time, if the others save nothing and it can run in
        all rounds that it needs."""
        gains = [self.gain(each) for each in fastest]
        if any(gain and gain.value >= LEAST_GAIN for gain in gains):
            return None
        waiting = [each for each in self.changed if not each.seconds and not each.failure]
        fits = FEWEST_ROUNDS * self._round_s(waiting[:1]) <= remaining_s
        return waiting[0] if waiting and fits else None

    def _cost_s(self, fastest: Sequence[Attempt], count: int, number: int) -> float:
        """Seconds of this round with this many changes, and of the rounds that the best one needs
        after it."""
        later = max(0, FEWEST_ROUNDS - 1 - len(fastest[0].seconds))
        needed_s = self._round_s(fastest[:count]) + later * self._round_s(fastest[:1])
        # Only the first run is timed yet. If the others are slower, a further change in this round
        # must not cost the best one its last round.
        return SLOWDOWN * needed_s if number == 1 and count > 1 else needed_s

    def _round_s(self, changed: Sequence[Attempt]) -> float:
        return self.baseline.run_s + sum(each.run_s for each in changed)

    def _fastest(self) -> list[Attempt]:
        """The changes that still run, the one that has saved most in the rounds so far first.

        Those that have failed, or that lose much, do not run any more.
        """
        # A change that was left out of the last round does not come back.
        last = max((number for each in self.changed for number in each.seconds), default=None)
        running = [each for each in self.changed if last is None or last in each.seconds]
        return sorted(filter(self._is_alive, running), key=self._ratio)

    def _is_alive(self, attempt: Attempt) -> bool:
        """False if the change has failed, or has lost much."""
        return not attempt.failure and self._ratio(attempt) <= MOST_RATIO

    def _ratio(self, attempt: Attempt) -> float:
        """The loop's time with the change, relative to that without; 0 if it is not known."""
        # The end of the budget may have cut off the run of a round without a change.
        base = self.baseline.seconds
        ratios = [each / base[number] for number, each in attempt.seconds.items() if number in base]
        return stats.median(ratios or [0.0])


def is_sure(gain: stats.Estimate) -> bool:
    """True if a change with this gain saves time for sure, and enough to follow it."""
    return gain.is_interval and gain.low > 0 and gain.value >= LEAST_GAIN


def run_rounds(
    runner: ScriptRunner,
    attempts: Attempts,
    deadline: Deadline,
    limit_s: float,
    end_round: Callable[[int], None],
) -> bool:
    """Run rounds until the deadline, each in a random order.

    limit_s: time after which a run is killed. end_round: called with the number of each round.
    Returns True if there was no time for a further round. Raises Unsupported if the script fails
    without a change.
    """
    drawn = random.Random(0)
    for number in range(1, MOST_ROUNDS + 1):
        chosen = attempts.choose_round(number, deadline.remaining_s)
        if not chosen:
            return bool(attempts.choose_round(number, math.inf))
        order = [attempts.baseline, *chosen]
        drawn.shuffle(order)
        for each in order:
            run_once(runner, each, number, deadline, limit_s)
            if attempts.baseline.failure:
                raise Unsupported(attempts.baseline.failure)
        end_round(number)
    # There is no further round, however much time is left.
    return False


def run_once(
    runner: ScriptRunner, attempt: Attempt, number: int, deadline: Deadline, limit_s: float
) -> None:
    """Run the script with the change in the round of that number; the run ends at the deadline."""
    start_ns = now_ns()
    remaining_s = deadline.remaining_s
    if remaining_s <= 0:
        return
    try:
        attempt.seconds[number] = runner.seconds(attempt.change, min(limit_s, remaining_s))
    except Unsupported as error:
        # After the deadline, the run was killed for that reason, which is not a fault of its
        # change.
        if not deadline.is_over:
            attempt.failure = str(error)
    attempt.run_s = seconds_between(start_ns, now_ns())
