"""Estimate the time that a race takes, to tune within a short budget.

The estimates decide whether a budget is refused, to which length epochs are cut, and which larger
budget is proposed. They are about the shortest race that confirms a gain, in which the present
configuration and one other run.
"""

from __future__ import annotations

import math

from fastloop.core.types import UsageError
from fastloop.tune.budget import ENDING_S, PASSES_AFTER_RACE, Spending, TuneBudget
from fastloop.tune.race import FEWEST_CONFIRMING

SHORT_S = 120.0
"""A budget of fewer seconds is short: it has no time for a large space, nor for the measurements of
the model, which take about half a minute."""
TRIALS_OF_CONFIRMED_RACE = 2 + 2 * FEWEST_CONFIRMING + PASSES_AFTER_RACE
"""Number of trials of the shortest race that confirms a gain: one of the present configuration, one
of another, and the trials of both that confirm the gain. The passes after them count as trials."""
TRIAL_S = 0.5
"""Approximate seconds that the process of a trial takes to start."""
TRIAL_EPOCHS = 4
"""Number of epochs that a trial runs: for comparing data, warming up and timing."""
EPOCH_S = 2.0
"""Epochs of a race that take more seconds than this are cut to about this length (setting
`batches`)."""
SHARE_OF_TWO = 0.7
"""Share of the time after the pilot that a race of two configurations may take. Epochs are cut to a
length with which it takes no more."""
STEP_S = 10
"""A proposed budget is a multiple of this, in seconds."""
MARGIN_OF_FORECAST = 1.2
"""A proposed budget is this many times the time that was forecast from a few samples."""
PLANNING_S = 4.0
"""Minimum seconds for preparing a job's data and timing its batches, in their own processes."""
LEAST_TRIAL_S = 1.0
"""Minimum seconds of a trial, in its own process."""


def is_short(budget: TuneBudget) -> bool:
    """True if the budget is a time that is too short for the model's measurements."""
    return budget.seconds is not None and budget.seconds < SHORT_S


def check_least_time(spending: Spending) -> None:
    """Raise UsageError if the budget has no time for a race of two with the shortest trials.

    This is checked before anything is measured. A race that has begun does as much as it has time
    for.
    """
    budget_s = spending.budget.seconds
    least_s = spending.seconds_used + PLANNING_S + race_of_two_s(LEAST_TRIAL_S)
    if budget_s is None or least_s <= budget_s:
        return
    needed = f"comparing yours with one other takes at least {math.ceil(least_s)} s"
    raise UsageError(
        f"budget={budget_s:g}s is too short: {needed}; allowed: from {math.ceil(least_s)}s"
    )


def race_of_two_s(trial_s: float) -> float:
    """Approximate seconds of a race of two configurations that confirms a gain.

    trial_s: seconds of a trial.
    """
    return TRIALS_OF_CONFIRMED_RACE * trial_s + ENDING_S


def trial_of_epoch_s(
    epoch_s: float, shortest_window_s: float = 0.0, start_s: float = TRIAL_S
) -> float:
    """Approximate seconds of a trial with epochs of `epoch_s` seconds.

    shortest_window_s: minimum seconds of the timed part; shorter epochs are repeated in it.
    start_s: seconds that the process of the trial takes to start.
    """
    return start_s + (TRIAL_EPOCHS - 1) * epoch_s + max(epoch_s, shortest_window_s)


def longest_epoch_s(left_s: float, start_s: float = TRIAL_S) -> float:
    """Approximate seconds of an epoch with which a race of two takes SHARE_OF_TWO of `left_s`.

    left_s: seconds that are left for the race. start_s: seconds that the process of a trial
    takes to start. Negative if there is no such epoch; epochs are then cut to the fewest batches.
    """
    trial_s = (SHARE_OF_TWO * left_s - ENDING_S) / TRIALS_OF_CONFIRMED_RACE
    return (trial_s - start_s) / TRIAL_EPOCHS


def name_budget_of_share(seconds: float, share: float) -> str:
    """The `budget=` to propose for a task that may take only a share of the budget.

    seconds: time of the task; a margin of 20 % is added. share: the share, from 0 to 1.
    """
    return f"budget={math.ceil(MARGIN_OF_FORECAST * seconds / share / STEP_S) * STEP_S}s"


def name_larger_budget(budget: TuneBudget, spent_s: float, trial_s: float) -> str:
    """The `budget=` with which a race that had no time to confirm a gain can continue.

    Words instead, if the budget is not a time. spent_s: seconds spent so far. trial_s: seconds of a
    trial.
    """
    if budget.seconds is None:
        return "a larger budget"
    # The proposal is twice the estimated need, because the estimate is rough.
    return f"budget={math.ceil((spent_s + 2 * race_of_two_s(trial_s)) / STEP_S) * STEP_S}s"
