"""The sentence on jobs that are faster because they shuffle their samples less."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.result import Shuffling
from fastloop.reporting.summary import Row

LESS_FAR, MORE_KEPT = 0.1, 0.1
"""Differences of Shuffling.distance and neighbours_kept beyond which a job shuffles less than
another."""


def shuffling_sentence(rows: Sequence[Row]) -> str:
    """A sentence that names the fastest job of those that shuffle most, if a faster one shuffles
    less; else empty.

    rows: rows of one benchmark, in ranking order.
    """
    known = [(row, row.result.shadow.shuffling) for row in rows if row.result.shadow]
    jobs = [(row, shuffling) for row, shuffling in known if shuffling is not None]
    best = [(row, own) for row, own in jobs if not any(_less(own, other) for _, other in jobs)]
    if not best or best[0][0] is jobs[0][0]:
        return ""
    faster = [pair for pair in jobs[: jobs.index(best[0])] if _less(pair[1], best[0][1])]
    if not faster:
        return ""
    names = ", ".join(f"{row.label} ({_describe(shuffling)})" for row, shuffling in faster)
    verb = "shuffles" if len(faster) == 1 else "shuffle"
    return f"{names} {verb} less; of the jobs that shuffle most, {best[0][0].label} is fastest."


def _less(shuffling: Shuffling, other: Shuffling) -> bool:
    """True if the first shuffles less than the other."""
    return (
        shuffling.distance < other.distance - LESS_FAR
        or shuffling.neighbours_kept > other.neighbours_kept + MORE_KEPT
        or (shuffling.new_order_each_epoch is False and other.new_order_each_epoch is True)
    )


def _describe(shuffling: Shuffling) -> str:
    if shuffling.new_order_each_epoch is False and shuffling.distance > LESS_FAR:
        return "the same order in every epoch"
    kept = f"{100 * shuffling.neighbours_kept:.0f} % of neighbours stay together"
    return f"distance {shuffling.distance:.2f} of 1, {kept}"
