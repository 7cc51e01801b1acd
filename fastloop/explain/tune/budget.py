"""The budget of tuning, and how much of it is spent; kept through interruptions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import UsageError

SECONDS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
TEXT = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|trials|%)")
ALLOWED = "a time as 300s, 5min or 1h; a number of trials as 60trials; a share as 10%"


@dataclass(frozen=True, kw_only=True)
class TuneBudget:
    """Allowed cost of tuning: one of the fields is set."""

    seconds: float | None = None
    trials: int | None = None
    share: float | None = None
    """Of the trials that measuring every candidate would take."""


def parse_budget(text: object) -> TuneBudget:
    """The budget that the text says. Raises UsageError."""
    match = TEXT.fullmatch(str(text).replace(" ", ""))
    amount = float(match.group(1)) if match else 0.0
    unit = match.group(2) if match else ""
    if not amount or (unit == "trials" and amount % 1) or (unit == "%" and amount > 100):
        raise UsageError(f"budget={text}: allowed: {ALLOWED}")
    if unit == "trials":
        return TuneBudget(trials=int(amount))
    if unit == "%":
        return TuneBudget(share=amount / 100)
    return TuneBudget(seconds=amount * SECONDS[unit])


@dataclass
class Spending:
    """Expenses of a budget in this session and in earlier ones."""

    budget: TuneBudget
    exhaustive: int = 0
    """Trials of measuring every candidate."""
    before_s: float = 0.0
    """Seconds that earlier sessions have spent."""
    begun_ns: int = 0
    trials: int = 0

    def __post_init__(self) -> None:
        self.begun_ns = self.begun_ns or now_ns()

    @property
    def seconds(self) -> float:
        """Seconds of this session and of earlier ones."""
        return self.before_s + seconds_between(self.begun_ns, now_ns())

    def share(self) -> float:
        """The share of the budget that is spent: above 1 it is exceeded."""
        if self.budget.seconds is not None:
            return self.seconds / self.budget.seconds
        allowed = self.budget.trials or (self.budget.share or 0.0) * self.exhaustive
        return self.trials / max(1, allowed)
