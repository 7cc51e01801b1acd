"""Tuning on a short budget: a small space, no model, and the least time for any race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fastloop.core.types import UsageError
from fastloop.explain.tune.budget import Spending, TuneBudget
from fastloop.explain.tune.race import FEWEST_CONFIRMING
from fastloop.explain.tune.tuned_sweep import ENDING_S, PASSES
from fastloop.trial.job import Job

SHORT_S = 120.0
"""Shorter budgets have no time for a large space, and for the model's measurements, which take
about half a minute."""
LIKELY: Mapping[str, Sequence[str]] = {
    "loader": ("fastloop", "python_loop"),
    "torch_threads": ("null", "1"),
    "num_workers": ("0", "2"),
    "persistent_workers": ("false", "true"),
}
"""Values to try beside the user's own loader. Chosen by hand: on the recordings of experiments/tune
FastLoader, one torch thread and the right number of workers gain most; python_loop was not among
them."""
EXPECTED: Mapping[str, float] = {"loader=fastloop": 0.5, "loader=python_loop": 0.7}
OF_ONE_THREAD = 0.8
"""Costs that decide what is tried first where nothing is predicted. Chosen by hand, nearer to 1
than most gains on the recordings, so that a trial or two outweigh them."""
FEWEST_TRIALS = 2 + 2 * FEWEST_CONFIRMING + PASSES
"""One of the present configuration and of another, those that confirm a gain, and what follows."""
PLANNING_S, LEAST_TRIAL_S = 4.0, 1.0
"""Least time for preparing and timing a job's batches, and for a trial, in their own processes."""


def is_short(budget: TuneBudget) -> bool:
    """True for a time that is too short for the model."""
    return budget.seconds is not None and budget.seconds < SHORT_S


def narrow_space(
    space: Mapping[str, Sequence[str]], own_loader: str
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """The default space with what helps most often alone, and a note on what is left out."""
    likely = {**LIKELY, "loader": (*LIKELY["loader"], own_loader)}
    narrow: dict[str, Sequence[str]] = {
        name: [text for text in texts if text.partition("=")[2].lower() in likely[name]]
        for name, texts in space.items()
        if name in likely
    }
    kept = {name: texts for name, texts in narrow.items() if texts}
    shown = "; ".join(" ".join(texts) for texts in kept.values())
    return kept, [f"others than {shown}: the budget is below {SHORT_S:.0f} s"]


def expect_cost(job: Job, change: Sequence[str]) -> float:
    """Cost of a job relative to others, by its loader and its threads alone."""
    of_loader = math.prod(EXPECTED.get(text, 1.0) for text in change)
    return of_loader * (OF_ONE_THREAD if job.torch_threads == 1 else 1.0)


def check_least_time(
    spending: Spending, trial_s: float, ahead_s: float = 0.0, hint: str = ""
) -> None:
    """Raise UsageError where a race of two would exceed the budget.

    trial_s: about the time of a trial. ahead_s: that of what comes before the race. hint: the end
    of the message.
    """
    budget_s = spending.budget.seconds
    least_s = spending.seconds + ahead_s + FEWEST_TRIALS * trial_s + ENDING_S
    if budget_s is None or least_s <= budget_s:
        return
    needed = f"comparing yours with one other takes about {least_s:.0f} s"
    raise UsageError(f"budget={budget_s:g}s: {needed}; allowed: from {math.ceil(least_s)}s{hint}")
