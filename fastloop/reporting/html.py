"""A report as a single HTML file without scripts or requests, for screens, phones and print."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape

from fastloop.reporting.charts import FAINT, INK, VERMILLION
from fastloop.reporting.document import Document, Section
from fastloop.reporting.pictures import Picture
from fastloop.reporting.report_tables import Table
from fastloop.reporting.summary import DEFAULT_COLOUR

COLOURS = {
    INK: "var(--ink)",
    FAINT: "var(--rule)",
    DEFAULT_COLOUR: "var(--data)",
    VERMILLION: "var(--mark)",
}
"""CSS variable for each colour of a picture, so that pictures follow dark mode and print styles."""
TIMELINE_LEGEND = (
    "One epoch in which everything records what it does. The same for ui.perfetto.dev: "
    "timeline.json in the job's folder."
)
MORE_COLUMNS = "A wider window, or a phone on its side, shows all columns."
CSS = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f1f1d; --soft: #5c5c57;
  --rule: #c9c9c4; --data: #0072b2; --mark: #d55e00; --shade: #0004; }
@media screen and (prefers-color-scheme: dark) {
  :root { --paper: #17181a; --ink: #e9e8e4; --soft: #a5a49e; --rule: #45464a;
    --data: #56b4e9; --mark: #ff9d4d; --shade: #fff4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 68rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial,
  sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.01em; margin: 0 0 .4rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 3rem 0 .6rem; }
p { max-width: 44rem; margin: .6rem 0; }
.sub, .note, figcaption, footer { color: var(--soft); font-size: .875rem; line-height: 1.45; }
.sub { max-width: none; margin-bottom: 1.6rem; }
.verdict { font-size: 1.0625rem; }
/* A shadow marks each edge beyond which a table continues. At the table's end, a background that
   scrolls with the table covers the shadow. */
.scroll { overflow-x: auto; background: linear-gradient(to right, var(--paper) 1.5rem, transparent)
  left / 2.5rem 100% local, linear-gradient(to left, var(--paper) 1.5rem, transparent)
  right / 2.5rem 100% local, linear-gradient(to right, var(--shade), transparent)
  left / 1.1rem 100% scroll, linear-gradient(to left, var(--shade), transparent)
  right / 1.1rem 100% scroll; background-repeat: no-repeat; }
table { border-collapse: collapse; font-size: .875rem; line-height: 1.35;
  font-variant-numeric: tabular-nums lining-nums; border-bottom: 1px solid var(--ink); }
table.words { table-layout: auto; width: 100%; }
thead { border-top: 1px solid var(--ink); border-bottom: 1px solid var(--rule); }
th, td { padding: .34rem 0 .34rem 1.15rem; text-align: right; white-space: nowrap;
  font-weight: 400; vertical-align: top; }
thead th { color: var(--soft); font-size: .8125rem; vertical-align: bottom; white-space: normal; }
th:first-child { text-align: left; padding-left: 0; padding-right: .4rem; position: sticky; left: 0;
  background: var(--paper); }
.words td { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 5rem; }
.words td:nth-child(3) { min-width: 12rem; }
.words thead th { text-align: left; }
.pictures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 2rem 2.5rem;
  margin-top: 1.6rem; align-items: start; }
figure { margin: 0; }
figure h3 { font-size: .9375rem; font-weight: 600; margin: 0 0 .5rem; }
figcaption { margin-top: .35rem; }
svg { display: block; width: 100%; height: auto; max-width: 30rem; }
figure:only-child { grid-column: 1 / -1; }
figure:only-child svg { max-width: 38rem; }
.narrow { display: none; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif
  !important; font-variant-numeric: tabular-nums; }
.timeline img { display: block; width: 100%; height: auto; min-width: 44rem; }
footer { margin-top: 3rem; }
@media (max-width: 44rem) {
  body { padding: 1.4rem 1rem 3rem; font-size: 15.5px; }
  h1 { font-size: 1.4rem; }
  .pictures { grid-template-columns: minmax(0, 1fr); }
  .wide { display: none; }
  .narrow { display: block; }
  th:first-child { min-width: 32vw; max-width: 42vw; white-space: normal; } }
@page { margin: 14mm; }
@media print {
  body { padding: 0; max-width: none; font-size: 10pt; }
  h2 { margin-top: 1.6rem; break-after: avoid; }
  table { font-size: 7.75pt; }
  th, td { padding: .22rem 0 .22rem .65rem; white-space: normal; }
  thead th { font-size: 7.25pt; }
  th:first-child { position: static; }
  .scroll { overflow: visible; background: none; }
  .timeline img { min-width: 0; }
  .pictures { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.2rem 1.6rem; }
  .note { break-before: avoid; }
  figure, tr, .verdict { break-inside: avoid; } }
"""


def render_html(document: Document) -> str:
    """The complete page, which needs no network."""
    title = escape(document.title)
    verdicts = [
        f'<p class="verdict"><strong>{escape(heading)}.</strong> {escape(text)}</p>'
        for heading, text in document.verdicts
    ]
    body = [
        f"<header><h1>{title}</h1>",
        f'<p class="sub">{escape(document.subtitle)}</p></header>',
        *(f"<p>{escape(line)}</p>" for line in document.machine_load),
        *verdicts,
        _pictures([_figure(picture, picture.heading) for picture in document.first_pictures]),
        *(_table(table) for table in document.overview),
        *(_section(section) for section in document.sections),
        *(_timeline(heading, svg) for heading, svg in document.timelines),
        *(_table(table) for table in document.appendix),
        "<footer>Every figure is recomputed from the raw values in result.json. "
        "Made by fastloop report.</footer>",
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{CSS}</style>\n</head>\n<body>",
            *body,
            "</body>\n</html>\n",
        ]
    )


def _section(section: Section) -> str:
    figures = [_figure(picture, picture.title) for picture in section.pictures]
    return f"{_table(section.table, section.heading)}\n{_pictures(figures)}"


def _timeline(heading: str, svg: bytes) -> str:
    """The unchanged picture in a box that scrolls on a narrow screen."""
    # The picture is the source of an image, and not inline: the file may come from a stranger, and
    # no browser runs the scripts of an image.
    label = escape(heading)
    source = f"data:image/svg+xml;base64,{b64encode(svg).decode()}"
    image = f'<img src="{source}" alt="{label}">'
    opening = f'<div class="scroll timeline" tabindex="0" role="region" aria-label="{label}">'
    return f'<h2>{label}</h2>\n{opening}\n{image}</div>\n<p class="note">{TIMELINE_LEGEND}</p>'


def _pictures(figures: Sequence[str]) -> str:
    return '<div class="pictures">\n' + "\n".join(figures) + "\n</div>"


def _figure(picture: Picture, heading: str) -> str:
    return (
        f"<figure><h3>{escape(heading)}</h3>\n{_inline(picture)}\n"
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _inline(picture: Picture) -> str:
    """The SVG with the page's colours; ids get the picture's name as a prefix to be unique."""
    # matplotlib knows no CSS variables, so its colours are replaced in its output.
    text = picture.svg()
    for colour, variable in COLOURS.items():
        text = text.replace(colour, variable)
    # A page has no use for matplotlib's metadata, which name foreign addresses.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{picture.name}-", text)
    label = f'<svg role="img" aria-label="{escape(picture.heading)}"'
    return text.replace("<svg", label, 1)


def _table(table: Table, heading: str = "") -> str:
    heading = escape(heading or table.heading)
    # A narrow screen hides the columns that `table.kept` does not name; the first column stays.
    kinds = [
        ' class="wide"' if place and table.kept and cell not in table.kept else ""
        for place, cell in enumerate(table.head)
    ]
    head = "".join(
        f'<th scope="col"{kind}>{escape(cell)}</th>'
        for cell, kind in zip(table.head, kinds, strict=True)
    )
    # With tabindex, role and aria-label the keyboard can scroll a wide table, and screen readers
    # announce it.
    thead = f"<thead><tr>{head}</tr></thead>\n" if any(table.head) else ""
    rows = "\n".join(_row(row, kinds) for row in table.rows)
    kind = "" if table.numeric else ' class="words"'
    legend = f'\n<p class="note">{escape(table.legend)}</p>' if table.legend else ""
    if table.kept:
        legend += f'\n<p class="note narrow">{MORE_COLUMNS}</p>'
    return (
        f"<h2>{heading}</h2>\n"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{heading}">'
        f"<table{kind}>\n{thead}<tbody>\n{rows}\n</tbody></table></div>{legend}"
    )


def _row(row: tuple[str, ...], kinds: Sequence[str]) -> str:
    name, *cells = [escape(cell) for cell in row]
    values = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds[1:], strict=True))
    return f'<tr><th scope="row">{name}</th>{values}</tr>'
