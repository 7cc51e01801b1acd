"""Numbers as text for people: a few significant digits, never an exponent."""

from __future__ import annotations

import math


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
