"""Define the objectives of tuning: how the cost that tuning minimizes follows from a measurement.

A cost is measured either in a trial or in an instrumented pass, an epoch that records its waits.
"""

from __future__ import annotations

from collections.abc import Callable

from fastloop.core.result import Attribution, Measurement
from fastloop.core.types import UsageError

SHORTEST_S = 1e-6
"""Minimum cost of a wait, in seconds. A race takes logarithms of costs, and zero has none; waits
below this are not worth a change."""
TRIAL_COSTS: dict[str, Callable[[Measurement], float]] = {
    "epoch": lambda measured: measured.seconds / measured.epochs,
    "samples_per_s": lambda measured: 1 / measured.samples_per_s,
}
"""The cost of a trial by objective: seconds of an epoch, or of a sample, in the timed window."""
PASS_COSTS: dict[str, Callable[[Attribution], float]] = {
    "first_batch": lambda seen: seen.first_batch_s,
    "exposed_wait": lambda seen: max(SHORTEST_S, seen.stall_fraction * seen.seconds),
}
"""The cost of an instrumented pass in seconds, by objective."""
OBJECTIVES = (*TRIAL_COSTS, *PASS_COSTS)


def check_objective(name: object) -> str:
    """Return the name if an objective has it. Raises UsageError for other values."""
    if name not in OBJECTIVES:
        raise UsageError(f"objective={name}: allowed: {', '.join(OBJECTIVES)}")
    return str(name)
