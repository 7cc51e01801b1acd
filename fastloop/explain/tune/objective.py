"""Objectives of tuning: a cost of each trial, which is made small."""

from __future__ import annotations

from collections.abc import Callable

from fastloop.core.result import Measurement
from fastloop.core.types import UsageError

COSTS: dict[str, Callable[[Measurement], float]] = {
    "epoch": lambda measured: measured.seconds / measured.epochs,
    "samples_per_s": lambda measured: 1 / measured.samples_per_s,
}
"""By objective, the cost that a timed window tells."""
OBJECTIVES = tuple(COSTS)


def check_objective(name: object) -> str:
    """The objective of that name. Raises UsageError."""
    if name not in OBJECTIVES:
        raise UsageError(f"objective={name}: allowed: {', '.join(OBJECTIVES)}")
    return str(name)
