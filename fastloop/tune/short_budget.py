"""Tuning within a short budget: without a model, and in the least time that a race needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastloop.core.types import UsageError
from fastloop.trial.job import Job
from fastloop.tune.budget import ENDING_S, PASSES, Spending, TuneBudget
from fastloop.tune.race import FEWEST_CONFIRMING

SHORT_S = 120.0
"""With a shorter budget there is no time for a large space, nor for the model's measurements, which
take about half a minute."""
EXPECTED: Mapping[str, float] = {
    "loader=fastloop": 0.5,
    "loader=numpy_loop": 0.6,
    "loader=python_loop": 0.7,
}
"""Relative costs by override, which decide on the order of trials if nothing is predicted. Chosen
by hand, nearer to 1 than most gains on the recordings, so that a trial or two outweigh them."""
OF_ONE_THREAD = 0.8
"""Relative cost of one torch thread, chosen in the same way."""
WORKER_S = 0.03
"""About the seconds in which a forked worker starts and ends; many of them take seconds. Chosen by
hand, not measured: it orders trials, and bounds the number of workers in a short budget."""
TRIALS_OF_CONFIRMED_RACE = 2 + 2 * FEWEST_CONFIRMING + PASSES
"""Trials of the shortest race: one of the present configuration and one of another, the trials that
confirm a gain, and the passes after them."""
TRIAL_S = 0.5
"""About the seconds that the process of a trial takes to start."""
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
"""A proposed budget has this many times as long as is forecast by a few samples."""
PLANNING_S = 4.0
"""Least time for preparing a job's data and timing its batches, in their own processes."""
LEAST_TRIAL_S = 1.0
"""Least time for a trial, in its own process."""


def is_short(budget: TuneBudget) -> bool:
    """True if the budget is a time, and has none for the model's measurements."""
    return budget.seconds is not None and budget.seconds < SHORT_S


def expect_cost(
    job: Job, change: Sequence[str], *, waits: bool = False, epoch_s: float = math.inf
) -> float:
    """Expected cost of a job relative to others, by its loader and its threads alone.

    waits: True if samples wait, for example for a disk; then the number of workers counts, too.
    epoch_s: seconds of an epoch without workers; workers that start in each epoch prolong it.
    """
    cost = math.prod(EXPECTED.get(text, 1.0) for text in change)
    if waits and job.loading.num_workers:
        stay = job.loading.persistent_workers
        cost = divide_waits(cost, job.loading.num_workers, stay, epoch_s)
    return cost * (OF_ONE_THREAD if job.torch_threads == 1 else 1.0)


def divide_waits(cost: float, workers: int, stay: bool, epoch_s: float) -> float:
    """The cost with workers if samples wait. cost: the cost without workers.

    stay: True if the workers stay from epoch to epoch. epoch_s: seconds of an epoch; workers that
    start in each one prolong it.
    """
    # Each worker waits for its own sample, so the waits overlap.
    return cost / workers + (0.0 if stay else workers * WORKER_S / epoch_s)


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
    """About the seconds of a race of two that confirms a gain. trial_s: seconds of a trial."""
    return TRIALS_OF_CONFIRMED_RACE * trial_s + ENDING_S


def trial_of_epoch_s(
    epoch_s: float, shortest_window_s: float = 0.0, start_s: float = TRIAL_S
) -> float:
    """About the seconds of a trial with epochs of this length.

    start_s: seconds that the process of the trial takes to start.
    """
    return start_s + (TRIAL_EPOCHS - 1) * epoch_s + max(epoch_s, shortest_window_s)


def longest_epoch_s(left_s: float, start_s: float = TRIAL_S) -> float:
    """About the longest epoch with which a race of two takes no more than its share of this time.

    start_s: seconds that the process of a trial takes to start. Negative if there is no such epoch;
    epochs are then cut as short as they can be.
    """
    trial_s = (SHARE_OF_TWO * left_s - ENDING_S) / TRIALS_OF_CONFIRMED_RACE
    return (trial_s - start_s) / TRIAL_EPOCHS


def name_budget_of_share(seconds: float, share: float) -> str:
    """The setting of a budget of which no more than that share is this many seconds, with 20 %
    more, as the forecast may be too low."""
    return f"budget={math.ceil(MARGIN_OF_FORECAST * seconds / share / STEP_S) * STEP_S}s"


def name_larger_budget(budget: TuneBudget, spent_s: float, trial_s: float) -> str:
    """The setting with which a race that had no time to confirm a gain can go on.

    spent_s: seconds so far; trial_s: seconds of a trial.
    """
    if budget.seconds is None:
        return "a larger budget"
    # The proposal is twice the estimated need, because the estimate is rough.
    return f"budget={math.ceil((spent_s + 2 * race_of_two_s(trial_s)) / STEP_S) * STEP_S}s"
