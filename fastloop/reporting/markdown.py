"""A report as Markdown with the tables and pictures of the HTML page, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.reporting.charts.benchmark_pictures import Picture
from fastloop.reporting.document import Document
from fastloop.reporting.report_tables import Table


def render_markdown(document: Document, with_pictures: bool) -> str:
    """The complete report; pictures are links to <name>.png in the same folder."""
    blocks = [f"# {document.title}", document.subtitle, *document.machine_load]
    blocks += [f"**{heading}.** {text}" for heading, text in document.verdicts]
    if with_pictures:
        blocks += [_image(picture) for picture in document.first_pictures]
    for table in document.overview:
        blocks += _table(table)
    for section in document.sections:
        blocks += _table(section.table, section.heading)
        if with_pictures:
            blocks += [_image(picture) for picture in section.pictures]
    for table in document.appendix:
        blocks += _table(table)
    # a name may contain HTML, which Markdown would pass on
    return "\n\n".join(blocks).replace("<", "&lt;") + "\n"


def _table(table: Table, heading: str = "") -> list[str]:
    align = "---:" if table.numeric else "---"
    lines = [
        _line(table.head),
        _line(["---", *[align] * (len(table.head) - 1)]),
        *(_line(row) for row in table.rows),
    ]
    return [
        f"## {heading or table.heading}",
        "\n".join(lines),
        *([table.legend] if table.legend else []),
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _image(picture: Picture) -> str:
    return f"![{picture.heading}]({picture.name}.png)\n\n{picture.caption}"
