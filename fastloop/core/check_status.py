"""The exit statuses of `fastloop check`."""

from __future__ import annotations

from enum import IntEnum


class CheckStatus(IntEnum):
    """The outcome of a check, by its exit status."""

    NO_SLOWER = 0
    """No job is slower than allowed."""
    SLOWER = 1
    """A job is slower than allowed, or no longer finishes."""
    OTHER_ENVIRONMENT = 2
    """The machine, the versions or the state of the page cache differ from the base's."""
    OTHER_DATA = 3
    """The samples differ from the base's, or the number of epochs."""
    NOT_JUDGED = 4
    """Nothing can be told: there are too few trials, there is no base, or a setting is wrong."""
