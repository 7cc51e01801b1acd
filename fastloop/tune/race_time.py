"""Estimate the time that a race takes, so that tuning keeps to a short budget.

The estimate is that of the shortest race that confirms a gain: the present configuration runs
against a single other one. A budget without time for this race is refused, and a larger one is
proposed. If the race would take too long with whole epochs, its epochs are cut.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fastloop.core.types import UsageError
from fastloop.tune.budget import ENDING_S, PASSES_AFTER_RACE, Spending, TuneBudget
from fastloop.tune.race import FEWEST_CONFIRMING

if TYPE_CHECKING:
    from fastloop.tune.part_reader import EpochPart

SHORT_S = 120.0
"""A budget of fewer seconds is short: there is no time to try many settings, nor to measure the
input of the model that predicts them, which takes about half a minute."""
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
"""Share of the time left for the race that the shortest race may take. Epochs are cut so that it
takes no more."""
STEP_S = 10
"""A proposed budget is a multiple of this number of seconds."""
MARGIN_OF_FORECAST = 1.2
"""A proposed budget is this many times the time that was forecast from a few samples."""
PLANNING_S = 4.0
"""Minimum seconds for preparing a job's data and timing its batches, in their own processes."""
LEAST_TRIAL_S = 1.0
"""Minimum seconds of a trial, in its own process."""
BUDGET_MARGIN = 1.25
"""A budget that an error proposes is this many times the need, which is only an estimate."""


def is_short(budget: TuneBudget) -> bool:
    """True if the budget is a time that is too short for the model's measurements."""
    return budget.seconds is not None and budget.seconds < SHORT_S


def check_least_time(spending: Spending) -> None:
    """Raise UsageError if the budget has no time for a race of two with the shortest trials.

    This check comes before all measurements. A race that has begun uses the time that there is.
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
    """The `budget=` to propose if a task needs `seconds`, and may take only a share of the budget.

    A margin of 20 % is added. share: the share, from 0 to 1.
    """
    return f"budget={math.ceil(MARGIN_OF_FORECAST * seconds / share / STEP_S) * STEP_S}s"


def name_larger_budget(budget: TuneBudget, spent_s: float, trial_s: float) -> str:
    """The `budget=` to propose if a race had no time to confirm a gain.

    If the budget is a number of trials, the result is "a larger budget". spent_s: seconds spent so
    far. trial_s: seconds of a trial.
    """
    if budget.seconds is None:
        return "a larger budget"
    # The proposal is twice the estimated need, because the estimate is rough.
    return f"budget={math.ceil((spent_s + 2 * race_of_two_s(trial_s)) / STEP_S) * STEP_S}s"


class SmallBudgetError(ValueError):
    """The budget has no time for the shortest race."""

    def __init__(self, budget_s: float, needed_s: float) -> None:
        self.needed_s = needed_s
        self.allowed_s = math.ceil(BUDGET_MARGIN * needed_s)
        needed = f"comparing yours with one other takes about {needed_s:.1f} s"
        super().__init__(
            f"budget_s={budget_s:g} is too short: {needed}; allowed: from {self.allowed_s}"
        )


def check_loop_budget(
    part: EpochPart,
    budget_s: float,
    min_window_s: float,
    fewest_trials: int = TRIALS_OF_CONFIRMED_RACE,
) -> None:
    """Raise SmallBudgetError if the budget has no time for the race of `loop_race_s`."""
    needed_s = loop_race_s(part, min_window_s, fewest_trials)
    if needed_s > budget_s:
        raise SmallBudgetError(budget_s, needed_s)


def loop_race_s(part: EpochPart, min_window_s: float, fewest_trials: int) -> float:
    """Approximate seconds of the shortest race of loaders, which has `fewest_trials` trials.

    part: the part that the present loader has read. min_window_s: minimum seconds of the timed part
    of a trial with whole epochs.
    """
    # A trial of a cut epoch reads the part three times: to warm up, to compare data and to take the
    # time. A trial of a whole epoch reads it up to five times, and repeats it until the timed
    # window is long enough.
    trial_s = 5 * part.seconds + min_window_s if part.is_whole else 3 * part.seconds
    # Before the trials, the present loader reads the part once, and twice more to compare its data
    # between two epochs.
    return fewest_trials * trial_s + 3 * part.seconds
