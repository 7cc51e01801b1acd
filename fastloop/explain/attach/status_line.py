"""A line in the last row of a terminal to which a script prints at any time."""

from __future__ import annotations

import os
from collections.abc import Callable

SAVE, RESTORE, CLEAR = "\x1b7", "\x1b8", "\x1b[2K"
"""Escape sequences that save the cursor's place, go back to it, and clear the cursor's row."""
ONE_DOWN, ONE_UP = "\x1bD", "\x1b[1A"
"""Escape sequences that move the cursor by a row in its column. ONE_DOWN also scrolls the screen if
the cursor is in the last row. The usual ways of moving down either leave the column or do not
scroll."""
FEWEST_ROWS = 3
"""A terminal with fewer rows gets no line."""


class StatusLine:
    """A line in the terminal's last row, which does not scroll while the line is shown.

    The script may print to the same terminal at any time. Drawing the line changes neither the
    script's cursor nor the rows above. Each drawing is a single write, so that no output of another
    process gets into the middle of it.

    write: writes a text to the terminal. size: returns the terminal's numbers of columns and rows.
    """

    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]]) -> None:
        self._write = write
        self._size = size
        self._rows = 0
        """Number of the terminal's rows when the line was drawn; 0: no line is shown."""

    def show(self, text: str) -> None:
        """Draw the line with this text, cut to the terminal's width.

        Nothing is drawn if the terminal has fewer than FEWEST_ROWS rows.
        """
        columns, rows = self._size()
        if rows < FEWEST_ROWS:
            return
        # Before the first drawing, and after a change of the terminal's height, the cursor may be
        # in the last row. The screen then scrolls by one row to make room for the line.
        room = f"{ONE_DOWN}{ONE_UP}" if rows != self._rows else ""
        self._rows = rows
        # `above` lets only the rows above the line scroll. It also moves the cursor, so the
        # cursor's place is saved before.
        above, last = f"\x1b[1;{rows - 1}r", f"\x1b[{rows};1H"
        shown = text[: columns - 1]
        self._write(f"{room}{SAVE}{above}{last}{CLEAR}{shown}{RESTORE}")

    def erase(self) -> None:
        """Remove the line if it is shown, and let all rows scroll again."""
        if self._rows:
            self._write(f"{SAVE}\x1b[r\x1b[{self._rows};1H{CLEAR}{RESTORE}")
            self._rows = 0


def open_status_line(descriptor: int) -> StatusLine | None:
    """The line of a terminal; None if no line is to be drawn.

    descriptor: a file descriptor, such as that of stderr. No line is drawn if it is not that of a
    terminal, or if the terminal knows no escape sequences.
    """
    is_drawn = os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
    # Under torchrun, several ranks of this command may share the terminal: only one draws a line.
    if not is_drawn or os.environ.get("LOCAL_RANK", "0") != "0":
        return None

    def size() -> tuple[int, int]:
        columns, rows = os.get_terminal_size(descriptor)
        return columns, rows

    return StatusLine(lambda text: os.write(descriptor, text.encode()), size)
