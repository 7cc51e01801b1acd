"""Show numbers and durations to people, with a few significant digits and without an exponent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.core.stats import Estimate

MINUTE_S, HOUR_S = 60, 3600
"""Seconds of a minute and of an hour."""
WIDEST_INTERVAL = 10.0
"""An interval is not shown if its ends differ by more than this factor: it would say nothing."""


def significant(value: float, digits: int = 3) -> str:
    """The value with `digits` significant digits, and with all digits before the decimal point.

    Zeros at the end of a fraction are left out: 0.0123, 4.5, 1,235.
    """
    # The addition turns -0.0 into 0.0.
    if not value or not math.isfinite(value):
        return f"{value + 0.0:g}"
    # The magnitude is taken after rounding: 9.996 becomes 10.0, with one decimal less than 9.99.
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def decimals(values: Sequence[float], digits: int = 3) -> int:
    """Number of decimals, 1 to 9, that shows `digits` digits of the smallest positive value."""
    smallest = min((value for value in values if value > 0), default=1.0)
    return min(9, max(1, digits - 1 - math.floor(math.log10(smallest))))


@dataclass(frozen=True)
class TimeUnit:
    """A unit of durations."""

    name: str
    """Abbreviation, such as `ms`."""
    per_second: float
    """Number of these units in a second."""

    def of(self, seconds: float) -> float:
        """The duration as a number of this unit."""
        return seconds * self.per_second


SECONDS, MILLISECONDS, MICROSECONDS = (
    TimeUnit("s", 1.0), TimeUnit("ms", 1e3), TimeUnit("us", 1e6),
)  # fmt: skip
SHORTEST_SECONDS, SHORTEST_MILLISECONDS = 1.0, 1e-4
"""The shortest durations that are shown in seconds and in milliseconds, both in seconds."""
LONG_SECONDS = 100.0
"""If one of several durations beside each other takes this many seconds or more, all of them are
shown in seconds."""


def unit_of(shortest: float) -> TimeUnit:
    """The unit in which a duration of `shortest` seconds is shown: 1.2 s, 106 ms, 0.8 ms, 90 us."""
    if shortest >= SHORTEST_SECONDS:
        return SECONDS
    return MILLISECONDS if shortest >= SHORTEST_MILLISECONDS else MICROSECONDS


def unit_of_all(durations: Sequence[float]) -> TimeUnit:
    """The unit in which several durations are shown beside each other.

    durations: in seconds. The unit fits the shortest duration; if one duration is long, the unit is
    seconds.
    """
    return SECONDS if max(durations) >= LONG_SECONDS else unit_of(min(durations))


def show_time(seconds: float, unit: TimeUnit | None = None) -> str:
    """The duration with three significant digits, in `unit` or, if None, in a unit that fits."""
    unit = unit or unit_of(seconds)
    return f"{significant(unit.of(seconds))} {unit.name}"


def show_estimate(estimate: Estimate, show: Callable[[float], str]) -> str:
    """The value with its interval in brackets, or with its range in parentheses.

    show: returns the text of a number.
    """
    bounds = f"{show(estimate.low)}, {show(estimate.high)}"
    return f"{show(estimate.value)} " + (f"[{bounds}]" if estimate.is_interval else f"({bounds})")


def show_percent(share: float) -> str:
    """A share in whole percent, or with one decimal below ten percent; never -0.0 %."""
    if abs(share) >= 0.0995:
        return f"{100 * share:.0f} %"
    # The addition turns -0.0 into 0.0.
    return f"{round(100 * share, 1) + 0.0:.1f} %"


def show_fine_percent(share: float) -> str:
    """A share in percent, rounded to two significant digits: 0.42 %, 0.4 %, 42 %.

    From 99.5 % on, the share is rounded to whole percent: 423 %.
    """
    value = 100 * share
    # With two significant digits, 99.5 and more would be shown as 1e+02.
    if abs(value) >= 99.5:
        return f"{value:.0f} %"
    # Small numbers have an exponent as a float, but none as a Decimal.
    return f"{Decimal(f'{value:.2g}'):f} %"


def show_duration(seconds: float) -> str:
    """Seconds as `45 s`, `1 min 20 s` or `2 h 5 min`: at most two units."""
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        minutes, rest = divmod(whole, MINUTE_S)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(whole / MINUTE_S), MINUTE_S)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def show_about(seconds: float) -> str:
    """A rough duration, rounded to 5 s below ten minutes, and to minutes from there; at least 5 s.

    >>> show_about(83.2)
    '1 min 25 s'
    """
    step = 5 if seconds < 10 * MINUTE_S else MINUTE_S
    return show_duration(max(5, step * round(seconds / step)))
