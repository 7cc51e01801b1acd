"""Text from elsewhere, such as names in a result file, made safe to print."""

from __future__ import annotations

import re

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and newline, and halves of surrogate pairs: a terminal would obey
some of them, and XML allows none."""
CLASS = re.compile(r"^(?:BadData: |\w+: \[Errno \d+\] )")
"""A class name and error number at the beginning of a reason, which add nothing to its message."""
LONGEST_WORD = 240
"""Words of up to this many characters are printed whole; usual paths are shorter."""
SHOWN = 40
"""Number of characters of a longer word that are printed."""


def printable(text: str) -> str:
    """The text, with a question mark in the place of each unprintable character."""
    return UNPRINTABLE.sub("?", text)


def shorten_words(text: str) -> str:
    """The text, with words of more than LONGEST_WORD characters cut off and their length added."""
    return re.sub(
        rf"\S{{{LONGEST_WORD + 1},}}",
        lambda word: f"{word.group()[:SHOWN]}… ({len(word.group()):,} characters)",
        text,
    )


def plain_reason(reason: str) -> str:
    """A failure's reason for a terminal, with very long words cut off.

    Unusable data, and errors of the system such as a full disk, lose their class and number.
    """
    return shorten_words(CLASS.sub("", reason))
