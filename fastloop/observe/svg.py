"""The few elements of SVG that a timeline needs, as text."""

from __future__ import annotations

from html import escape

from fastloop.core.parts import Part

COLOURS = {
    Part.START: "#e69f00",
    Part.WAIT: "#d55e00",
    Part.END: "#a6761d",
    Part.COPY: "#8c6bb1",
    Part.STEP: "#009e73",
    Part.GAP: "#a9a9a4",
    Part.FETCH: "#74b9df",
    Part.READ: "#08519c",
    Part.DECODE: "#3182bd",
    Part.TRANSFORM: "#c7669b",
    Part.COLLATE: "#7a5a3a",
    Part.QUEUE: "#b3b09a",
    Part.PIN: "#636363",
}
"""Colours of middle brightness, which are seen on white and on black. Most of them are from Okabe
and Ito's palette, distinct for colour-blind readers."""
STYLE = """
.fastloop-timeline { max-width: none; --tl-paper: #fff; --tl-ink: #1f1f1d; --tl-rule: #d6d6d1; }
@media screen and (prefers-color-scheme: dark) {
  .fastloop-timeline { --tl-paper: #17181a; --tl-ink: #e9e8e4; --tl-rule: #45464a; } }
.fastloop-timeline .paper { fill: var(--tl-paper); }
.fastloop-timeline text { fill: var(--tl-ink); font: 12px system-ui, sans-serif; }
.fastloop-timeline .heading { font-weight: 600; }
.fastloop-timeline .rule { stroke: var(--tl-rule); }
.fastloop-timeline .batch { fill: #fff; stroke: #0009; stroke-width: 2px; paint-order: stroke;
  font-size: 10px; text-anchor: middle; }
.fastloop-timeline .tick { text-anchor: middle; font-size: 11px; }
.fastloop-timeline .lane { text-anchor: end; }
"""


def wrap_svg(elements: list[str], size: tuple[int, int], title: str, description: str) -> str:
    """The <svg> element, with a title and a description for readers who can't see it."""
    width, height = size
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'role="img" class="fastloop-timeline" width="{width}" height="{height}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f"<style>{STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height}"/>',
            *elements,
            "</svg>\n",
        ]
    )


def draw_text(x: float, y: float, text: str, kind: str = "") -> str:
    """A text element with its baseline at y."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{escape(kind)}">{escape(text)}</text>'


def draw_box(x: float, y: float, size: tuple[float, float], stage: Part, hint: str) -> str:
    """A box in the colour of the stage, with a hint that shows under the pointer."""
    width, height = size
    box = f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
    return f'{box}fill="{COLOURS[stage]}"><title>{escape(hint)}</title></rect>'


def draw_rule(x: float, top: float, bottom: float) -> str:
    """A vertical line of the grid."""
    return f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
