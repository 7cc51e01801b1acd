"""The report as Markdown: the page's tables and pictures, for a README or an issue."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.reporting.document import Document
from fastloop.reporting.figures import Picture
from fastloop.reporting.sheets import Sheet


def markdown(document: Document, pictures_beside: bool) -> str:
    """The whole report; with pictures only where their files lie beside it."""
    blocks = [f"# {document.title}", document.subtitle]
    blocks += [f"**{heading}.** {said}" for heading, said in document.verdicts]
    for sheet in document.overview:
        blocks += _table(sheet)
    for section in document.sections:
        blocks += _table(section.sheet, section.heading)
        if pictures_beside:
            blocks += [_image(picture) for picture in section.pictures]
    for sheet in document.appendix:
        blocks += _table(sheet)
    return "\n\n".join(blocks) + "\n"


def _table(sheet: Sheet, heading: str = "") -> list[str]:
    align = "---:" if sheet.numeric else "---"
    lines = [
        _line(sheet.head),
        _line(["---", *[align] * (len(sheet.head) - 1)]),
        *(_line(row) for row in sheet.rows),
    ]
    return [
        f"## {heading or sheet.heading}",
        "\n".join(lines),
        *([sheet.note] if sheet.note else []),
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _image(picture: Picture) -> str:
    return f"![{picture.heading}]({picture.name}.png)\n\n{picture.caption}"
