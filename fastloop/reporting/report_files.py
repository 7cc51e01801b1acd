"""Write the files of a report: HTML page, Markdown, pictures and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fastloop.core.atomic_files import hold_lock, write_beside
from fastloop.core.text import printable
from fastloop.core.types import UsageError

if TYPE_CHECKING:
    from fastloop.core.result import Result
    from fastloop.reporting.pictures import Picture
    from fastloop.reporting.report_content import Document
    from fastloop.reporting.report_tables import Table

FORMATS = ("md", "html", "png", "csv")
"""The formats in which a report is written."""
COLUMNS = (
    "job", "loader", "dataset", "benchmark", "round", "seconds", "samples_per_s", "limit_fraction",
    "limit_kind", "sweep", "why",
)  # fmt: skip
"""The columns of report.csv."""


def write_report(
    results: Sequence[Result],
    folder: Path,
    baseline: str = "",
    formats: Sequence[str] = FORMATS,
    timelines: Mapping[tuple[str | None, str], bytes] = MappingProxyType({}),
) -> list[Path]:
    """Write the report into the folder and return the paths of its files.

    baseline: name of the job or loader that ratios refer to; empty: `summarize` chooses one.
    formats: those of FORMATS to write. timelines: the timelines of explained jobs as SVG, by the
    job's sweep and name, see core.result_io.load_timelines. Raises ValueError for a baseline that
    names no finished job or loader.
    """
    # These are imported on use, because commands that write no report need not wait for
    # matplotlib.
    from fastloop.reporting.html_report import render_html
    from fastloop.reporting.report_content import compose_document
    from fastloop.reporting.summary import check_baseline

    check_baseline(results, baseline)
    document = compose_document(results, baseline, timelines)
    # Everything is rendered before the first file is written, so that an error leaves all files of
    # the previous report unchanged.
    files: dict[str, bytes] = {}
    if "html" in formats:
        files["report.html"] = printable(render_html(document)).encode()
    if "md" in formats:
        text = render_markdown(document, with_pictures="png" in formats)
        files["report.md"] = printable(text).encode()
    if "csv" in formats:
        files["report.csv"] = trials_csv(results).encode()
    if "png" in formats:
        later = [picture for section in document.sections for picture in section.pictures]
        pictures = [*document.first_pictures, *later]
        files |= {f"{picture.name}.png": picture.png() for picture in pictures}
    with hold_lock(folder):
        return [_write(folder / name, content) for name, content in files.items()]


def trials_csv(results: Sequence[Result]) -> str:
    """CSV with a row for each trial and benchmark of every job, including unfinished jobs."""
    from fastloop.core.result import verdict_word

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        for trial in result.trials:
            for benchmark, window in trial.benchmarks.items():
                # csv writes None as an empty cell.
                writer.writerow(
                    [
                        result.name,
                        result.loader,
                        result.dataset,
                        benchmark,
                        trial.number + 1,
                        window.seconds,
                        window.samples_per_s,
                        window.limit_fraction,
                        window.limit_origin.kind if window.limit_origin else None,
                        result.tags.get("sweep", ""),
                        verdict_word(result, benchmark),
                    ]
                )
    return out.getvalue()


def _write(path: Path, content: bytes) -> Path:
    """Write the file in one step, so that no reader sees a part of it, and return its path."""
    with write_beside(path) as temporary_path:
        temporary_path.write_bytes(content)
    return path


def parse_formats(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of formats; all formats if the text is empty.

    Raises UsageError for an unknown format.
    """
    formats = tuple(text.split(",")) if text else FORMATS
    for name in formats:
        if name not in FORMATS:
            raise UsageError(
                f"format={text}: no such format {name!r}; allowed: {','.join(FORMATS)}"
            )
    return formats


def render_markdown(document: Document, with_pictures: bool) -> str:
    """Render the report as Markdown, without the timelines.

    with_pictures: True: include links to the pictures, <name>.png in the folder of the report.
    """
    blocks = [f"# {document.title}", document.subtitle, *document.machine_load]
    blocks += [f"**{each.heading}.** {each.text}" for each in document.verdicts]
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
    # A name may contain HTML, which Markdown would pass on.
    return "\n\n".join(blocks).replace("<", "&lt;") + "\n"


def _table(table: Table, heading: str = "") -> list[str]:
    """Heading, table and legend in Markdown."""
    align = "---:" if table.numeric else "---"
    lines = [
        markdown_row(table.head),
        markdown_row(["---", *[align] * (len(table.head) - 1)]),
        *(markdown_row(row) for row in table.rows),
    ]
    return [
        f"## {heading or table.heading}",
        "\n".join(lines),
        *([table.legend] if table.legend else []),
    ]


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"


def _image(picture: Picture) -> str:
    """The link to a picture, and its caption, in Markdown."""
    return f"![{picture.heading}]({picture.name}.png)\n\n{picture.caption}"
