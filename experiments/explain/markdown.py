"""Tables of Markdown, and figures in their cells."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown(rows: Rows) -> str:
    """The rows as a Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def show_count(count: int, total: int) -> str:
    """A number out of a total, with its share."""
    return f"{count} ({percent(count / total)})" if total else "0"


def percent(share: float, digits: int = 0) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f} %"
