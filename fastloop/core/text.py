"""Text for a terminal: made safe to print, shortened, wrapped and aligned."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and newline, and halves of surrogate pairs: a terminal would obey
some of them, and XML allows none."""
ERROR_CLASS = re.compile(r"^(?:BadData: |\w+: \[Errno \d+\] )")
"""A class name and error number at the beginning of a reason, which add nothing to its message."""
LONGEST_WORD = 240
"""Words of up to this many characters are printed whole; usual paths are shorter."""
NUM_SHOWN = 40
"""Number of characters of a longer word that are printed."""

LINE_WIDTH = 96
"""Number of characters at which `wrap` breaks lines."""


def printable(text: str) -> str:
    """The text, with a question mark in place of each unprintable character."""
    return UNPRINTABLE.sub("?", text)


def printable_line(text: str) -> str:
    """The text as one line that is safe to print, such as a message that quotes someone else's
    file.

    >>> printable_line("a\\nb\\033")
    'a b?'
    """
    return printable(re.sub(r"\s+", " ", text))


def encodable(text: str) -> str:
    r"""The text as UTF-8 can encode it: halves of surrogate pairs become escapes.

    Python decodes the name of a file to such halves if its bytes are not UTF-8.

    >>> encodable("caf\udce9")
    'caf\\udce9'
    """
    return text.encode(errors="backslashreplace").decode()


def first_line(text: object) -> str:
    """The first line of an error's message, or of another text; empty if it has none.

    >>> first_line(ValueError("no header\\n\\nat line 3"))
    'no header'
    """
    return (str(text).strip().splitlines() or [""])[0]


def shorten_words(text: str) -> str:
    """The text, with words of more than LONGEST_WORD characters cut off and their length added."""
    return re.sub(
        rf"\S{{{LONGEST_WORD + 1},}}",
        lambda word: f"{word.group()[:NUM_SHOWN]}… ({len(word.group()):,} characters)",
        text,
    )


def plain_reason(reason: str) -> str:
    """A failure's reason for a terminal, with very long words cut off.

    Unusable data, and errors of the system such as a full disk, lose their class and number.
    """
    return shorten_words(ERROR_CLASS.sub("", reason))


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A line for each row of cells, with the columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (zip(row, widths, strict=True) for row in rows)
    return ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in aligned]


def wrap(lines: Iterable[str], width: int = LINE_WIDTH) -> list[str]:
    """The lines, each broken between words at the width; names with hyphens stay whole."""
    return [piece for line in lines for piece in textwrap.wrap(line, width, break_on_hyphens=False)]
