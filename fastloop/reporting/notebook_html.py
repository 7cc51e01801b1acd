"""Render the HTML that a notebook shows for a result object, such as that of `fastloop.tune`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def notebook_html(
    answer: str,
    rows: Sequence[Sequence[str]],
    notes: Iterable[str] = (),
    first: Iterable[str] = (),
) -> str:
    """The answer as a paragraph, then the rows as a table, then the notes as a list.

    rows: cells; the first row is the head of the table. first: paragraphs before the answer.

    >>> notebook_html("a < b", [("loader",), ("a",)])
    '<p>a &lt; b</p><table><thead><tr><th>loader</th></tr></thead>...'
    """
    head, *body = [[escape(cell) for cell in row] for row in rows]
    table_head = "".join(f"<th>{cell}</th>" for cell in head)
    table_body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    table = f"<table><thead><tr>{table_head}</tr></thead><tbody>{table_body}</tbody></table>"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in (*first, answer))
    return f"{paragraphs}{table}" + (f"<ul>{items}</ul>" if items else "")
