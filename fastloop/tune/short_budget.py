"""Tune within a short budget: without a model, and in the least time that a race needs."""

from __future__ import annotations

import math

from fastloop.core.types import UsageError
from fastloop.tune.budget import ENDING_S, PASSES_AFTER_RACE, Spending, TuneBudget
from fastloop.tune.race import FEWEST_CONFIRMING

SHORT_S = 120.0
"""With a shorter budget there is no time for a large space, nor for the model's measurements, which
take about half a minute."""
TRIALS_OF_CONFIRMED_RACE = 2 + 2 * FEWEST_CONFIRMING + PASSES_AFTER_RACE
"""Trials of the shortest race: one of the present configuration and one of another, the trials that
confirm a gain, and the passes after them."""
TRIAL_S = 0.5
"""Approximate seconds that the process of a trial takes to start."""
TRIAL_EPOCHS = 4
"""Epochs of a trial: for comparing data, warming up and timing."""
EPOCH_S = 2.0
"""Raced epochs that take longer than this are cut to about this length (setting `batches`)."""
SHARE_OF_TWO = 0.7
"""Share of the time after the pilot that a race of two configurations may take; epochs are cut so
that it fits."""
STEP_S = 10
"""A proposed budget is a multiple of this."""
MARGIN_OF_FORECAST = 1.2
"""A proposed budget is this many times what a few samples forecast."""
PLANNING_S = 4.0
"""Minimum time for preparing a job's data and timing its batches, in their own processes."""
LEAST_TRIAL_S = 1.0
"""Minimum time for a trial, in its own process."""


def is_short(budget: TuneBudget) -> bool:
    """True if the budget is a time that is too short for the model's measurements."""
    return budget.seconds is not None and budget.seconds < SHORT_S


def check_least_time(spending: Spending) -> None:
    """Raise UsageError if there is no time for a race of two configurations with the shortest
    trials.

    This is the only refusal, before anything is measured. Later a race does as much as it has time
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
    """Approximate seconds of a race of two that confirms a gain. trial_s: seconds of a trial."""
    return TRIALS_OF_CONFIRMED_RACE * trial_s + ENDING_S


def trial_of_epoch_s(
    epoch_s: float, shortest_window_s: float = 0.0, start_s: float = TRIAL_S
) -> float:
    """Approximate seconds of a trial with epochs of this length.

    start_s: seconds that the process of the trial takes to start.
    """
    return start_s + (TRIAL_EPOCHS - 1) * epoch_s + max(epoch_s, shortest_window_s)


def longest_epoch_s(left_s: float, start_s: float = TRIAL_S) -> float:
    """Approximate length of the longest epoch with which a race of two keeps to its share of this
    time, in seconds.

    start_s: seconds that the process of a trial takes to start. Negative if there is no such epoch;
    epochs are then cut as short as they can be.
    """
    trial_s = (SHARE_OF_TWO * left_s - ENDING_S) / TRIALS_OF_CONFIRMED_RACE
    return (trial_s - start_s) / TRIAL_EPOCHS


def name_budget_of_share(seconds: float, share: float) -> str:
    """The `budget=` of which these seconds, with a margin of 20 %, are at most this share."""
    return f"budget={math.ceil(MARGIN_OF_FORECAST * seconds / share / STEP_S) * STEP_S}s"


def name_larger_budget(budget: TuneBudget, spent_s: float, trial_s: float) -> str:
    """The setting with which a race that had no time to confirm a gain can go on.

    spent_s: seconds so far; trial_s: seconds of a trial.
    """
    if budget.seconds is None:
        return "a larger budget"
    # The proposal is twice the estimated need, because the estimate is rough.
    return f"budget={math.ceil((spent_s + 2 * race_of_two_s(trial_s)) / STEP_S) * STEP_S}s"
