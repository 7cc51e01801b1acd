"""Durations as text for people."""

from __future__ import annotations

MINUTE_S, HOUR_S = 60, 3600


def show_duration(seconds: float) -> str:
    """Seconds as `45 s`, `1 min 20 s` or `2 h 5 min`: two units, of which the second may be 0."""
    whole = round(seconds)
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        minutes, rest = divmod(whole, MINUTE_S)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(whole / MINUTE_S), MINUTE_S)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def show_about(seconds: float) -> str:
    """Text of a rough forecast, in steps of 5 s below ten minutes and of minutes above.

    >>> show_about(83.2)
    '1 min 25 s'
    """
    step = 5 if seconds < 10 * MINUTE_S else MINUTE_S
    return show_duration(max(5, step * round(seconds / step)))
