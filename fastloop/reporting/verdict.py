"""The outcome of a benchmark as one paragraph of text."""

from __future__ import annotations

from fastloop.core import stats
from fastloop.core.number_text import significant
from fastloop.core.stats import Ratio
from fastloop.reporting.summary import Comparison, Row


def verdict(comparison: Comparison) -> str:
    """A paragraph naming the winner and its lead, or the tied jobs, or why no order is proven."""
    rows = comparison.rows
    if len(rows) == 1:
        return f"{rows[0].label} takes {_time(rows[0])}. There is no other job to compare it with."
    if comparison.undetermined:
        order = ", ".join(f"{row.label} {format_duration(row.median)}" for row in rows)
        return (
            f"Undetermined: {comparison.undetermined.rstrip('.')}. The medians, which prove no "
            f"order: {order}."
        )
    best = [row for row in rows if row.rank == rows[0].rank]
    return _winner(comparison) if len(best) == 1 else _tie(comparison, best)


def describe_speed(ratio: Ratio) -> str:
    """Describe a ratio of seconds as a speed-up or slow-down, with its interval."""
    if ratio.low <= 1 <= ratio.high:
        return (
            "not significantly different in these trials "
            f"({_times(ratio.estimate)} the time, 95 % interval {_range(ratio.low, ratio.high)})"
        )
    if ratio.estimate < 1:
        low, high = 1 / ratio.high, 1 / ratio.low
        return f"{_times(1 / ratio.estimate)} as fast (95 % interval {_range(low, high)})"
    interval = _range(ratio.low, ratio.high)
    return f"slower, with {_times(ratio.estimate)} the time (95 % interval {interval})"


def format_duration(seconds: float) -> str:
    """Three significant digits in seconds, the unit of the tables."""
    return f"{significant(seconds)} s"


def _time(row: Row) -> str:
    interval = ""
    if row.interval:
        low, high = map(format_duration, row.interval)
        interval = f" (95 % interval {low} to {high})"
    time = f"{format_duration(row.median)} a trial{interval}"
    if row.limit_fraction is None:
        return time
    return f"{time}, {stats.percent(row.limit_fraction)} % of what the machine can do"


def _winner(comparison: Comparison) -> str:
    best, second = comparison.rows[:2]
    winner = f"{best.label} is fastest, with {_time(best)}."
    if best.ratio:
        speed = describe_speed(best.ratio)
        return f"{winner} Compared with the baseline {comparison.baseline}, it is {speed}."
    if best.label == comparison.baseline and second.ratio:
        speed = describe_speed(second.ratio)
        return f"{winner} It is the baseline; the next, {second.label}, is {speed}."
    return winner


def _tie(comparison: Comparison, best: list[Row]) -> str:
    separator = "; " if any("," in row.label for row in best) else ", "
    names = separator.join(row.label for row in best[:-1]) + f" and {best[-1].label}"
    tie = (
        f"No winner: these trials can't tell {names} apart. The lowest median is "
        f"{best[0].label}'s, {_time(best[0])}."
    )
    if comparison.baseline in [row.label for row in best]:
        return f"{tie} The baseline {comparison.baseline} is among them."
    speeds = [f"{row.label} is {describe_speed(row.ratio)}" for row in best if row.ratio]
    if not speeds:
        return tie
    return f"{tie} Compared with the baseline {comparison.baseline}, {'; '.join(speeds)}."


def _times(factor: float) -> str:
    return f"{_number(factor)} times"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(factor: float) -> str:
    """Three significant digits, without an exponent."""
    return significant(factor)
