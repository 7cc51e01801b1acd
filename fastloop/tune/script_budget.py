"""Divide the budget of `fastloop tune --script` among its steps, and refuse too small a budget.

The steps are the observed run of the script, the second run, which ends with the race, and the
report of the outcome. Each error names a budget that suffices.
"""

from __future__ import annotations

import math

from fastloop.core.types import UsageError
from fastloop.explain.attach.findings import LoopFindings, ScriptFindings, outside_s
from fastloop.tune.budget import Spending, most_ending_s
from fastloop.tune.script_plan import ScriptOutcome

LEAST_BUDGET_S = 10.0
"""Minimum budget in seconds: it must have time for two runs of a script, each with an import of
torch, and for a race."""
LOOK_SHARE, LEAST_LOOK_S, MOST_LOOK_S = 0.15, 3.0, 30.0
"""The observed run ends at its first step after this share of the budget, limited to these bounds
in seconds. The time counts from the script's import of torch's DataLoader."""
FIRST_SHARE = 0.5
"""The observed run is stopped after this share of the budget, even if no batch has come by then:
the second run would take as long to reach its loop."""


def look_s(budget_s: float) -> float:
    """Seconds from the import of torch's DataLoader to the step at which the observed run ends."""
    return min(MOST_LOOK_S, max(LEAST_LOOK_S, LOOK_SHARE * budget_s))


def check_budget(budget_s: float) -> None:
    """Raise UsageError if the budget has no time for any script."""
    if budget_s < LEAST_BUDGET_S:
        raise UsageError(
            f"budget={budget_s:g}s is too short for two runs of a script; allowed: from "
            f"{LEAST_BUDGET_S:g}s"
        )


def check_rest(spending: Spending, findings: ScriptFindings, loop: LoopFindings) -> None:
    """Raise UsageError, with a budget that suffices, if the second run has no time for a race.

    findings: the observed run. loop: the loop that is tuned.
    """
    again_s = outside_s(findings)
    if again_s < spending.remaining_s:
        return
    # These modules import torch, which nothing else in the command needs.
    from fastloop.tune.race_time import BUDGET_MARGIN
    from fastloop.tune.script_race import forecast_race_s

    # Other loops may run before the one that is raced, so their time counts, too.
    until_race_s = max(again_s, (findings.seconds or 0.0) - loop.seconds)
    needed_s = BUDGET_MARGIN * (until_race_s + forecast_race_s(loop))
    reason = f"the script takes {again_s:.0f} s outside of its loops, and runs again"
    least_s = find_sufficient_s(spending, needed_s)
    raise UsageError(
        f"budget={spending.budget.seconds:g}s is too short: {reason}; allowed: from {least_s}s"
    )


def check_outcome(spending: Spending, outcome: ScriptOutcome) -> None:
    """Raise UsageError, with a budget that suffices, if there was no time for a race."""
    if outcome.needed_s is None:
        return
    least_s = find_sufficient_s(spending, outcome.needed_s)
    raise UsageError(f"budget={spending.budget.seconds:g}s is too short; allowed: from {least_s}s")


def find_sufficient_s(spending: Spending, needed_s: float) -> int:
    """Find a budget, in whole seconds, that suffices for the seconds spent and `needed_s` more.

    With a larger budget, the observed run is longer, and more time is reserved for the report.
    Example: of a budget of 40 s, 20 s are spent, and 30 s more are needed. A budget of 63 s
    suffices, because its observed run is 3.5 s longer, and up to 9.5 s are reserved for the report.
    """
    given_s, spent_s = spending.budget.seconds or 0.0, spending.seconds_used
    least_s = math.floor(given_s) + 1
    # Each increase prolongs the observed run and the report, so a further one may be necessary.
    while True:
        longer_s = look_s(least_s) - look_s(given_s) + most_ending_s(least_s)
        wanted_s = math.ceil(spent_s + needed_s + longer_s)
        if wanted_s <= least_s:
            return least_s
        least_s = wanted_s
