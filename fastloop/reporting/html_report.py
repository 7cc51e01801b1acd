"""Render a report as one HTML page for screens, phones and print.

The page has no scripts, and requests nothing from a network.
"""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from pathlib import Path

from fastloop.reporting.charts import FAINT, INK, VERMILLION
from fastloop.reporting.page import render_page
from fastloop.reporting.pictures import Picture
from fastloop.reporting.report_content import Document
from fastloop.reporting.summary import DEFAULT_COLOUR

COLOURS = {
    INK: "var(--ink)",
    FAINT: "var(--rule)",
    DEFAULT_COLOUR: "var(--data)",
    VERMILLION: "var(--mark)",
}
"""CSS variable for each colour of a picture, so that pictures follow dark mode and print styles."""
TEMPLATE = Path(__file__).with_name("report.html.jinja")


def render_html(document: Document) -> str:
    """Render the document as the text of a complete HTML page."""
    return render_page(TEMPLATE, document=document, inline=_inline, encode=_encode)


def _encode(svg: bytes) -> str:
    return b64encode(svg).decode()


def _inline(picture: Picture) -> str:
    """The picture as an <svg> element for the page, with the page's colours.

    Its ids get the picture's name as a prefix, so that they are unique in the page.
    """
    # matplotlib knows no CSS variables, so its colours are replaced in its output.
    text = picture.svg()
    for colour, variable in COLOURS.items():
        text = text.replace(colour, variable)
    # A page has no use for matplotlib's metadata, which name foreign addresses.
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{picture.name}-", text)
    label = f'<svg role="img" aria-label="{escape(picture.heading)}"'
    return text.replace("<svg", label, 1)
