"""Parse the budget and the limit of memory of `fastloop tune`, and count what a tuning has spent.

A tuning that was interrupted and resumed has several sessions: `Spending` counts all of them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.thread_times import slowdown_by_load
from fastloop.core.types import UsageError

UNIT_SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
"""Seconds of each unit of time."""
BUDGET_TEXT = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h|trials|%)", re.ASCII)
"""The text of a budget: groups for the amount and its unit."""
ALLOWED_BUDGETS = (
    "a time such as 300s, 5min or 1h; a number of trials such as 60trials; a share such as 10%"
)
ENDING_S = 2.0
"""Seconds reserved at the end for reporting the outcome, on a quiet machine."""
MOST_ENDING_SHARE = 0.15
"""Largest share of the budget that is reserved for reporting the outcome on a busy machine, unless
ENDING_S is more. Chosen by hand, so that most of a small budget is left for the race."""
ENDING_OF_JOB_S = 0.1
"""Seconds reserved at the end for logging each job."""
PASSES_AFTER_RACE = 2
"""Number of passes after a configuration's trials: one with all data compared, one observed."""


@dataclass(frozen=True, kw_only=True)
class TuneBudget:
    """The budget of tuning: a time, a number of trials or a share; the other fields are None."""

    seconds: float | None = None
    trials: int | None = None
    share: float | None = None
    """Share, from 0 to 1, of the trials that measuring every candidate would take."""


def parse_budget(text: object) -> TuneBudget:
    """Parse a budget such as 5min, 60trials or 10%. Raises UsageError."""
    match = BUDGET_TEXT.fullmatch(str(text))
    amount = float(match.group(1)) if match else 0.0
    unit = match.group(2) if match else ""
    # A fraction of a trial, or more than 100 % of all trials, is not a budget either.
    if not amount or (unit == "trials" and amount % 1) or (unit == "%" and amount > 100):
        raise UsageError(f"budget={text}: allowed: {ALLOWED_BUDGETS}")
    if unit == "trials":
        return TuneBudget(trials=int(amount))
    if unit == "%":
        return TuneBudget(share=amount / 100)
    return TuneBudget(seconds=amount * UNIT_SECONDS[unit])


def parse_memory_limit(text: object) -> float | None:
    """Parse `memory_limit_mib=`; None if there is no limit. Raises UsageError."""
    if text is None:
        return None
    try:
        value = float(str(text))
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UsageError(f"memory_limit_mib={text}: allowed: a number of MiB above 0")
    return value


def most_ending_s(budget_s: float) -> float:
    """The most seconds of a budget that are reserved for reporting the outcome."""
    return max(ENDING_S, MOST_ENDING_SHARE * budget_s)


@dataclass
class Spending:
    """A budget, and the time and the trials that this session and earlier ones have spent."""

    budget: TuneBudget
    exhaustive: int = 0
    """Number of trials that measuring every candidate would take; 0 until they are counted."""
    before_s: float = 0.0
    """Seconds that earlier sessions have spent."""
    begun_ns: int = 0
    """Start of this session, by the clock of `now_ns`; 0: now."""
    ending_s: float = 0.0
    """Seconds that are reserved for reporting the outcome after the race."""
    num_trials: int = 0
    """Number of trials that have run."""
    _longest_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the longest trial so far, by name of the configuration."""

    def __post_init__(self) -> None:
        self.begun_ns = self.begun_ns or now_ns()

    @property
    def seconds_used(self) -> float:
        """Seconds that this session and earlier ones have taken."""
        return self.before_s + seconds_between(self.begun_ns, now_ns())

    def share_used(self) -> float:
        """The share of the budget that is spent or reserved; above 1 if the budget is exceeded."""
        if self.budget.seconds is not None:
            return (self.seconds_used + self.ending_s) / self.budget.seconds
        # The limit of a share is zero until the candidates are counted.
        return self.num_trials / max(1, self._trial_limit)

    def count_trials(self, trial_s: float) -> int:
        """Approximate number of trials of `trial_s` seconds that the budget has room for."""
        if self.budget.seconds is None:
            return int(self._trial_limit)
        return int(max(0.0, self.budget.seconds - self.seconds_used) / trial_s)

    @property
    def _trial_limit(self) -> float:
        """The number of trials of a budget that is not a time."""
        return self.budget.trials or (self.budget.share or 0.0) * self.exhaustive

    @property
    def remaining_s(self) -> float:
        """Seconds until the outcome has to be reported; infinite if the budget is not a time."""
        limit_s = self.budget.seconds
        return math.inf if limit_s is None else limit_s - self.seconds_used - self.ending_s

    def has_time(self, seconds: float) -> bool:
        """True if this much time is left, or the budget is not a time."""
        return seconds <= self.remaining_s

    def find_ending_s(self) -> float:
        """Seconds to reserve for reporting the outcome: more on a busy machine, by the factor by
        which its load has slowed down the work so far."""
        if self.budget.seconds is None:
            return ENDING_S
        return min(most_ending_s(self.budget.seconds), ENDING_S * slowdown_by_load())

    def continue_from(self, seconds: float) -> None:
        """Set the time spent so far to this many seconds, and count from there."""
        self.before_s = seconds
        self.begun_ns = now_ns()

    def add_trial(self, name: str, seconds: float) -> None:
        """Count a trial of that configuration."""
        self.num_trials += 1
        self._longest_s[name] = max(seconds, self.longest_trial_s(name))

    def longest_trial_s(self, name: str) -> float:
        """Seconds of the longest trial of that configuration so far."""
        return self._longest_s.get(name, 0.0)
