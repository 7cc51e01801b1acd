"""The outcome of a benchmark as one paragraph of text."""

from __future__ import annotations

from dataclasses import replace

from fastloop.core import stats
from fastloop.core.number_text import significant
from fastloop.core.stats import Ratio
from fastloop.reporting.limit_text import describe_work
from fastloop.reporting.shuffling import shuffling_sentence
from fastloop.reporting.summary import Comparison, Row, ratio_by_round


def verdict(comparison: Comparison) -> str:
    """A paragraph naming the winner and its lead, or the tied jobs, or why no order is proven."""
    return " ".join(filter(None, (_outcome(comparison), shuffling_sentence(comparison.rows))))


def _outcome(comparison: Comparison) -> str:
    rows = comparison.rows
    if len(rows) == 1:
        return f"{rows[0].label} takes {_time(rows[0])}. There is no other job to compare it with."
    if comparison.undetermined:
        has_commas = any("," in row.label for row in rows)
        between, after = ("; ", ":") if has_commas else (", ", "")
        order = between.join(f"{row.label}{after} {format_duration(row.median)}" for row in rows)
        return (
            f"Undetermined: {comparison.undetermined.rstrip('.')}. The medians, which prove no "
            f"order: {order}.{_times_as_long(rows[-1], rows[0])}"
        )
    best = [row for row in rows if row.rank == rows[0].rank]
    return _winner(comparison) if len(best) == 1 else _tie(comparison, best)


def describe_speed(ratio: Ratio, is_sure: bool = False) -> str:
    """Describe a ratio of seconds as a speed-up or slow-down, with its interval.

    is_sure: whether the ranks tell the two jobs apart, which see the noise of all jobs; otherwise
    the ratio's own interval decides.
    """
    if not is_sure and (not ratio.is_interval or ratio.low <= 1 <= ratio.high):
        return f"not proven to differ ({_times(ratio.estimate)} the time, {_bounds(ratio)})"
    if ratio.estimate < 1:
        inverse = replace(
            ratio, estimate=1 / ratio.estimate, low=1 / ratio.high, high=1 / ratio.low
        )
        return f"{_times(inverse.estimate)} as fast ({_bounds(inverse)})"
    return f"slower, with {_times(ratio.estimate)} the time ({_bounds(ratio)})"


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
    return f"{time}, {stats.percent(row.limit_fraction)} % of {describe_work(row.limit_origin)}"


def _winner(comparison: Comparison) -> str:
    best, second = comparison.rows[:2]
    winner = f"{best.label} is fastest, with {_time(best)}."
    if best.ratio:
        base = comparison.row(comparison.baseline)
        speed = describe_speed(best.ratio, is_sure=bool(base and best.label in base.faster))
        return f"{winner} Compared with the baseline {comparison.baseline}, it is {speed}."
    if best.label == comparison.baseline and second.ratio:
        speed = describe_speed(second.ratio, is_sure=True)
        return f"{winner} It is the baseline; the next, {second.label}, is {speed}."
    return f"{winner}{_times_as_long(second, best)}"


def _tie(comparison: Comparison, best: list[Row]) -> str:
    separator = "; " if any("," in row.label for row in best) else ", "
    names = separator.join(row.label for row in best[:-1]) + f" and {best[-1].label}"
    tie = (
        f"No winner: these trials can't tell {names} apart. The lowest median is "
        f"{best[0].label}'s, {_time(best[0])}.{_times_as_long(best[-1], best[0])}"
    )
    if comparison.needed:
        tie = f"{tie.rstrip('.')}; {comparison.needed}."
    if behind := comparison.rows[len(best) :]:
        tie += _times_as_long(behind[0], best[0])
    if comparison.baseline in [row.label for row in best]:
        return f"{tie} The baseline {comparison.baseline} is among them."
    base = comparison.row(comparison.baseline)
    surely = base.faster if base else frozenset()
    speeds = [
        f"{row.label} is {describe_speed(row.ratio, is_sure=row.label in surely)}"
        for row in best
        if row.ratio
    ]
    if not speeds:
        return tie
    return f"{tie} Compared with the baseline {comparison.baseline}, {'; '.join(speeds)}."


def _times_as_long(slow: Row, fast: Row) -> str:
    """A sentence on the ratio of two jobs, after a space; empty if they share no round."""
    ratio = ratio_by_round(slow.by_round, fast.by_round, False)
    if ratio is None:
        return ""
    unproven = "" if fast.label in slow.faster else ", not proven"
    return (
        f" {slow.label} takes {_times(ratio.estimate)} the time of {fast.label} ({_bounds(ratio)})"
        f"{unproven}."
    )


def _bounds(ratio: Ratio) -> str:
    if ratio.low == ratio.high:
        return "in one round" if not ratio.is_interval else "in all rounds"
    bounds = _range(ratio.low, ratio.high)
    return f"95 % interval {bounds}" if ratio.is_interval else f"{bounds} in its rounds"


def _times(factor: float) -> str:
    return f"{_number(factor)} times"


def _range(low: float, high: float) -> str:
    return f"{_number(low)} to {_number(high)}"


def _number(factor: float) -> str:
    """Three significant digits, without an exponent."""
    return significant(factor)
