"""Text from elsewhere, such as names in a result file, made safe to print."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and newline, and halves of surrogate pairs: a terminal would obey
some of them, and XML allows none."""


def printable(text: str) -> str:
    """The text, with a question mark in the place of each unprintable character."""
    return UNPRINTABLE.sub("?", text)
