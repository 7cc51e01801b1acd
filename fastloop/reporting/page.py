"""Render HTML: pages that need no network, such as reports and pages about scripts, and the tables
that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any


def render_page(template: Path, **values: Any) -> str:
    """The page of a template that extends `page.html.jinja`; all values are escaped in it.

    template: a file, which may include others of its own folder, and those next to this module.
    Raises jinja2.UndefinedError for a value that the template uses and that is not given.
    """
    # Only pages need it, and a call in a notebook must not wait for it.
    import jinja2

    folders = [template.parent, Path(__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)


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
