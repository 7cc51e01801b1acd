"""A benchmark's outcome in one paragraph of plain words."""

from __future__ import annotations

from fastloop import stats
from fastloop.reporting.summary import Comparison, Row
from fastloop.stats import Ratio


def verdict(comparison: Comparison) -> str:
    """Who wins and by how much, who ties, or why it is undetermined."""
    rows = comparison.rows
    if len(rows) == 1:
        return f"{rows[0].label} takes {_time(rows[0])}. There is no other job to compare it with."
    if comparison.undetermined:
        order = ", ".join(f"{row.label} {duration(row.median)}" for row in rows)
        return (
            f"Undetermined: {comparison.undetermined.rstrip('.')}. The medians, which prove no "
            f"order: {order}."
        )
    best = [row for row in rows if row.rank == rows[0].rank]
    return _winner(comparison) if len(best) == 1 else _tie(comparison, best)


def speed(ratio: Ratio) -> str:
    """The ratio of seconds as a factor of speed, with its interval."""
    if ratio.low <= 1 <= ratio.high:
        return (
            "not told apart by these trials "
            f"({_times(ratio.estimate)} the time, 95 % interval {_range(ratio.low, ratio.high)})"
        )
    if ratio.estimate < 1:
        low, high = 1 / ratio.high, 1 / ratio.low
        return f"{_times(1 / ratio.estimate)} as fast (95 % interval {_range(low, high)})"
    interval = _range(ratio.low, ratio.high)
    return f"slower, with {_times(ratio.estimate)} the time (95 % interval {interval})"


def duration(seconds: float) -> str:
    """Three digits, in milliseconds below a tenth of a second."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{seconds:.3g} s"


def _time(row: Row) -> str:
    spread = row.interval
    told = f" (95 % interval {duration(spread[0])} to {duration(spread[1])})" if spread else ""
    share = stats.percent(row.limit_fraction)
    return f"{duration(row.median)} a trial{told}, {share} % of what the machine can do"


def _winner(comparison: Comparison) -> str:
    best, second = comparison.rows[:2]
    said = f"{best.label} is fastest, with {_time(best)}."
    if best.ratio:
        return f"{said} Beside the baseline {comparison.baseline} it is {speed(best.ratio)}."
    if best.label == comparison.baseline and second.ratio:
        return f"{said} It is the baseline; the next, {second.label}, is {speed(second.ratio)}."
    return said


def _tie(comparison: Comparison, best: list[Row]) -> str:
    names = ", ".join(row.label for row in best[:-1]) + f" and {best[-1].label}"
    said = (
        f"No winner: these trials can't tell {names} apart. The lowest median is "
        f"{best[0].label}'s, {_time(best[0])}."
    )
    if comparison.baseline in [row.label for row in best]:
        return f"{said} The baseline {comparison.baseline} is among them."
    faster = [f"{row.label} is {speed(row.ratio)}" for row in best if row.ratio]
    return (
        f"{said} Beside the baseline {comparison.baseline}, {'; '.join(faster)}."
        if faster
        else said
    )


def _times(factor: float) -> str:
    return f"{_number(factor)} times"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(factor: float) -> str:
    """Three significant digits, without an exponent up to a million."""
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"
