"""A time by which work has to end, which is asked between measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastloop.core.spans import now_ns


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The time by which work has to end.

    Nothing is interrupted: whoever works asks before each measurement, and returns early.
    """

    end_ns: float = math.inf
    """By the clock of `now_ns`; infinite: there is no deadline."""

    @property
    def rest_s(self) -> float:
        """Seconds until the deadline; negative if it has passed."""
        return (self.end_ns - now_ns()) / 1e9

    @property
    def is_over(self) -> bool:
        """True once the deadline has passed."""
        return self.rest_s < 0

    def has_room(self, seconds: float) -> bool:
        """True if work that takes this long would end in time."""
        return seconds <= self.rest_s


def deadline_after(seconds: float | None, begun_ns: int | None = None) -> Deadline:
    """The deadline so many seconds after a time, by default from now on; None: no deadline."""
    if seconds is None:
        return Deadline()
    return Deadline(end_ns=(now_ns() if begun_ns is None else begun_ns) + 1e9 * seconds)
