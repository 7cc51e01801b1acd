"""Numbers as text for people: a few significant digits, never an exponent."""

from __future__ import annotations

import math
from collections.abc import Callable

from fastloop.core.stats import Estimate


def significant(value: float, digits: int = 3) -> str:
    """The value with that many significant digits and all of its integer ones: 0.0123, 4.5, 1,235.

    Zeros at the end of a fraction are left out.
    """
    if not value or not math.isfinite(value):
        return f"{value:g}"
    # rounded first: 9.996 has one decimal less than 9.99
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    text = f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_estimate(estimate: Estimate, show: Callable[[float], str]) -> str:
    """The value with its 95 % interval in brackets, or its range in parentheses."""
    bounds = f"{show(estimate.low)}, {show(estimate.high)}"
    return f"{show(estimate.value)} " + (f"[{bounds}]" if estimate.is_interval else f"({bounds})")


def show_percent(share: float) -> str:
    """A share in whole percent, with one decimal below ten."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.0995 else f"{100 * share:.1f} %"
