"""A line in the last row of a terminal to which a script prints at any time."""

from __future__ import annotations

import os
from collections.abc import Callable

SAVE, RESTORE, CLEAR = "\x1b7", "\x1b8", "\x1b[2K"
"""Escape sequences that save the cursor's place, go back to it, and clear the cursor's row."""
ONE_DOWN, ONE_UP = "\x1bD", "\x1b[1A"
"""ONE_DOWN stays in the same column, and scrolls the screen if the cursor is in the last row. The
usual ways of moving down do only one of the two."""
FEWEST_ROWS = 3
"""A terminal with fewer rows gets no line."""


class StatusLine:
    """Draws a line in the terminal's last row, which takes no part in scrolling meanwhile.

    The script prints to the same terminal at any time: its cursor, and the rows above, are left as
    they are. Each drawing is one write, into which no other process can write.

    write: writes a text to the terminal. size: returns its columns and rows.
    """

    def __init__(self, write: Callable[[str], object], size: Callable[[], tuple[int, int]]) -> None:
        self._write = write
        self._size = size
        self._rows = 0
        """Number of rows when the line was drawn; 0: it is not there."""

    def show(self, text: str) -> None:
        """Draw the line, in place of the last one."""
        columns, rows = self._size()
        if rows < FEWEST_ROWS:
            return
        # Before the first drawing, the screen scrolls by one row if need be: the last row may have
        # text and the cursor.
        room = f"{ONE_DOWN}{ONE_UP}" if rows != self._rows else ""
        self._rows = rows
        # Setting the rows that scroll moves the cursor.
        above, last = f"\x1b[1;{rows - 1}r", f"\x1b[{rows};1H"
        shown = text[: columns - 1]
        self._write(f"{room}{SAVE}{above}{last}{CLEAR}{shown}{RESTORE}")

    def erase(self) -> None:
        """Remove the line if it is there, and let all rows scroll."""
        if self._rows:
            self._write(f"{SAVE}\x1b[r\x1b[{self._rows};1H{CLEAR}{RESTORE}")
            self._rows = 0


def open_status_line(descriptor: int) -> StatusLine | None:
    """The line of the terminal with the descriptor; None if it is not a terminal that can draw
    one."""
    is_drawn = os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
    # Under torchrun, several ranks of this command may share the terminal.
    if not is_drawn or os.environ.get("LOCAL_RANK", "0") != "0":
        return None

    def size() -> tuple[int, int]:
        columns, rows = os.get_terminal_size(descriptor)
        return columns, rows

    return StatusLine(lambda text: os.write(descriptor, text.encode()), size)
