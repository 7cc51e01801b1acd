"""Objectives of tuning: the cost of a trial or of a pass, which tuning minimizes."""

from __future__ import annotations

from collections.abc import Callable

from fastloop.core.result import Attribution, Measurement
from fastloop.core.types import UsageError

SHORTEST_S = 1e-6
"""Minimum cost of a wait: a wait of zero has no logarithm, and waits below this are not worth a
change."""
TRIAL_COSTS: dict[str, Callable[[Measurement], float]] = {
    "epoch": lambda measured: measured.seconds / measured.epochs,
    "samples_per_s": lambda measured: 1 / measured.samples_per_s,
}
"""The cost of a timed window, by objective."""
PASS_COSTS: dict[str, Callable[[Attribution], float]] = {
    "first_batch": lambda seen: seen.first_batch_s,
    "exposed_wait": lambda seen: max(SHORTEST_S, seen.stall_fraction * seen.seconds),
}
"""The cost of an instrumented pass, by objective."""
OBJECTIVES = (*TRIAL_COSTS, *PASS_COSTS)


def check_objective(name: object) -> str:
    """The objective of that name. Raises UsageError."""
    if name not in OBJECTIVES:
        raise UsageError(f"objective={name}: allowed: {', '.join(OBJECTIVES)}")
    return str(name)
