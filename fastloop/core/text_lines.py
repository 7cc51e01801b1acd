"""Lines of text for a terminal: aligned columns, and sentences broken at a width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 96


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A line for each row of cells, with the columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (zip(row, widths, strict=True) for row in rows)
    return ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in aligned]


def wrap(lines: Iterable[str], width: int = WIDTH) -> list[str]:
    """The lines, each broken between words at the width; names with hyphens stay whole."""
    return [piece for line in lines for piece in textwrap.wrap(line, width, break_on_hyphens=False)]
