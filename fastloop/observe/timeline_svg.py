"""The picture of a timeline in SVG: its first batches and a steady stretch, in rows by lane."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from fastloop.core.number_text import significant
from fastloop.core.parts import Part
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKind
from fastloop.observe.lanes import LaneRow, build_lane_rows, flatten, part_seconds

WIDTH, LEFT, RIGHT = 960, 112, 16
"""Width of the picture, and of the margins beside the plots; all lengths are in units of SVG, which
are usually pixels of the screen."""
PLOT = WIDTH - LEFT - RIGHT
"""Width of a plot."""
ROW, QUEUE_ROW, ROW_GAP = 20, 9, 3
"""Height of a row, of a row of a queue, and of the gap below each row."""
LINE = 18
"""Height of a line of text."""
PIXEL = 0.5
"""Width of a pixel of the drawing. A pixel has the colour of the part of the epoch that takes most
of the pixel's time. A box for each event of a long epoch would need much more memory, and most
boxes could not be seen."""
FEWEST_SHOWN, MOST_SHOWN = 6, 12
"""Least and greatest number of batches in a stretch, if a plot does not show all batches."""
MOST_QUEUE_ROWS = 8
"""Maximum number of rows that are drawn of a queue; FastLoader may have hundreds of small batches
ready."""
NUM_TICKS = 8
"""Approximate number of ticks on an axis."""
LABEL_WIDTH, CHARACTER_WIDTH = 8, 6.6
"""Width of a digit of a batch's number with its margin, and of a character of the legend."""
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
"""Colours of middle brightness, which can be seen on white and on black. Most of the colours are
from Okabe and Ito's palette, which is distinct for colour-blind readers."""
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


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A stretch of an epoch, which one plot shows."""

    title: str
    start_ns: int
    stop_ns: int

    def x(self, time_ns: float) -> float:
        """The x coordinate of a time in the picture."""
        return LEFT + PLOT * (time_ns - self.start_ns) / (self.stop_ns - self.start_ns)


def draw_timeline(events: Iterable[Event], title: str = "Timeline of an epoch") -> str:
    """An <svg> element that shows the events of one pass as a timeline.

    The times on its axes count from the first event of the loop. Raises ValueError if no batch
    arrived.
    """
    rows = build_lane_rows(events)
    loop = [event for row in rows if row.key == LOOP_LANE for event in row.events]
    stretches = choose_stretches(loop, rows)
    summary = describe_loop(loop)
    elements = [_draw_text(16, 24, title, "heading"), _draw_text(16, 24 + LINE, summary)]
    legend, y = _draw_legend(rows, 24 + 2 * LINE)
    elements += legend
    for stretch in stretches:
        drawn, y = _draw_stretch(stretch, rows, loop[0].start_ns, y + 2 * LINE)
        elements += drawn
    return _wrap_svg(elements, (WIDTH, math.ceil(y) + 12), title, summary)


def describe_loop(loop: Sequence[Event]) -> str:
    """A sentence with the loop's time and the shares of its parts, the greatest first."""
    seconds = part_seconds(loop)
    total_s = sum(seconds.values())
    shares = ", ".join(f"{part} {100 * value / total_s:.1f} %" for part, value in seconds.items())
    return f"The loop took {total_s * 1e3:,.1f} ms: {shares}"


def choose_stretches(loop: Sequence[Event], rows: Sequence[LaneRow]) -> list[Stretch]:
    """The first batches and the same number in the middle; or all batches, if there are few.

    loop: the events of the loop. Raises ValueError if no batch arrived.
    """
    bounds: dict[int, tuple[int, int]] = {}
    arrived = [event.batch for event in loop if event.part is Part.WAIT]
    if not arrived:
        raise ValueError("no batch arrived in this timeline")
    for event in loop:
        low, high = bounds.get(event.batch, (event.start_ns, event.stop_ns))
        bounds[event.batch] = min(low, event.start_ns), max(high, event.stop_ns)
    workers = sum(row.key.kind is LaneKind.WORKER for row in rows)
    # Each worker makes at least two of these batches, if there are few workers.
    shown = min(MOST_SHOWN, max(FEWEST_SHOWN, 2 * workers + 4))
    start_ns, stop_ns = loop[0].start_ns, max(event.stop_ns for event in loop)
    if len(arrived) <= 2 * shown + 1:
        title = f"All {len(arrived)} batches"
        return [Stretch(title=title, start_ns=start_ns, stop_ns=stop_ns)]
    middle = arrived[len(arrived) // 2 : len(arrived) // 2 + shown]
    title = f"Start-up: first {shown} of {len(arrived)} batches"
    first = Stretch(title=title, start_ns=start_ns, stop_ns=bounds[arrived[shown - 1]][1])
    title = f"Steady: batches {middle[0]} to {middle[-1]}"
    begin_ns, end_ns = bounds[middle[0]][0], bounds[middle[-1]][1]
    return [first, Stretch(title=title, start_ns=begin_ns, stop_ns=end_ns)]


def _draw_legend(rows: Sequence[LaneRow], y: float) -> tuple[list[str], float]:
    """The elements of a legend of the parts that the rows have, and the y of its lower end."""
    present = {event.part for row in rows for event in row.events}
    x = 16.0
    elements = []
    for part in Part:
        if part not in present:
            continue
        elements += [
            _draw_box(x, y - 9, (10, 10), part, part),
            _draw_text(x + 15, y, part),
        ]
        x += 30 + len(part) * CHARACTER_WIDTH
    note = "a number is a batch's; blank: idle"
    return [*elements, _draw_text(x + 8, y, note)], y


def _draw_stretch(
    stretch: Stretch, rows: Sequence[LaneRow], zero_ns: int, y: float
) -> tuple[list[str], float]:
    """The elements of a stretch below y, and the y of their lower end."""
    elements = [_draw_text(16, y, stretch.title, "heading")]
    top = y + 10
    y = top
    for row in rows:
        events = [event for event in row.events if _overlaps(event, stretch)]
        if not events or row.number > MOST_QUEUE_ROWS:
            continue
        is_queue = row.key.kind is LaneKind.QUEUE
        height = QUEUE_ROW if is_queue else ROW
        # All rows of a queue share one label, beside the first row.
        if row.number == 1:
            elements.append(_draw_text(LEFT - 8, y + height - height / 4, row.name, "lane"))
        elements += _draw_boxes(events, stretch, y, height)
        # The rows of queues are too low for a number.
        if not is_queue:
            elements += _draw_numbers(events, stretch, y)
        y += height + ROW_GAP
    ticks, y = _draw_axis(stretch, zero_ns, top, y)
    return [*ticks, *elements], y


def _overlaps(event: Event, stretch: Stretch) -> bool:
    return event.stop_ns > stretch.start_ns and event.start_ns < stretch.stop_ns


def _draw_boxes(
    events: Sequence[Event], stretch: Stretch, y: float, height: float
) -> Iterator[str]:
    """The boxes of a row below y."""
    for first, last, event in _merge(_main_pieces(flatten(events), stretch)):
        hint = f"{event.part}, {_duration(event)}"
        hint += f", batch {event.batch}" if event.batch >= 0 else ""
        x, width = LEFT + first * PIXEL, (last - first + 1) * PIXEL
        yield _draw_box(x, y, (width, height), event.part, hint)


def _draw_numbers(events: Sequence[Event], stretch: Stretch, y: float) -> Iterator[str]:
    """The numbers of the batches in a row below y."""
    for batch, (start_ns, stop_ns) in _extents(events, stretch).items():
        left, right = stretch.x(start_ns), stretch.x(stop_ns)
        # A number that is wider than its batch would cover the neighbours.
        if right - left > LABEL_WIDTH * (len(str(batch)) + 1):
            yield _draw_text((left + right) / 2, y + ROW * 0.7, str(batch), "batch")


def _main_pieces(pieces: Iterable[Event], stretch: Stretch) -> Iterator[tuple[int, Event]]:
    """Each pixel that is not idle for most of its time, and the longest piece of its main work.

    The main work of a pixel is the part and the batch that take most of the pixel's time. A piece
    is the time in which an event is the innermost event of its lane, see `flatten`.
    """
    pixels: dict[int, dict[tuple[Part, int], float]] = defaultdict(lambda: defaultdict(float))
    longest: dict[tuple[int, Part, int], Event] = {}
    for piece in pieces:
        begin = max(0.0, (stretch.x(piece.start_ns) - LEFT) / PIXEL)
        end = min(PLOT / PIXEL, (stretch.x(piece.stop_ns) - LEFT) / PIXEL)
        for pixel in range(int(begin), math.ceil(end)):
            share = min(end, pixel + 1) - max(begin, pixel)
            pixels[pixel][piece.part, piece.batch] += share
            key = pixel, piece.part, piece.batch
            longest[key] = max(longest.get(key, piece), piece, key=_duration_ns)
    for pixel in sorted(pixels):
        work, share = max(pixels[pixel].items(), key=lambda item: item[1])
        if share >= 1 - sum(pixels[pixel].values()):
            yield pixel, longest[pixel, *work]


def _merge(pixels: Iterable[tuple[int, Event]]) -> Iterator[tuple[int, int, Event]]:
    """First and last pixel of each box, and the longest piece in it.

    Neighbouring pixels of the same part and batch become one box.
    """
    box: tuple[int, int, Event] | None = None
    for pixel, piece in pixels:
        if box:
            first, last, longest = box
            is_same = (longest.part, longest.batch) == (piece.part, piece.batch)
            if is_same and last == pixel - 1:
                box = first, pixel, max(longest, piece, key=_duration_ns)
                continue
            yield box
        box = pixel, pixel, piece
    if box:
        yield box


def _duration_ns(event: Event) -> int:
    return event.stop_ns - event.start_ns


def _extents(events: Iterable[Event], stretch: Stretch) -> dict[int, tuple[int, int]]:
    """Batch -> start and stop of the visible work on it in a row, without the wait for it."""
    extents: dict[int, tuple[int, int]] = {}
    for event in events:
        # The number is drawn over the work on the batch, not over waits, start or end.
        if event.batch < 0 or event.part in (Part.WAIT, Part.START, Part.END):
            continue
        start_ns = max(event.start_ns, stretch.start_ns)
        stop_ns = min(event.stop_ns, stretch.stop_ns)
        low, high = extents.get(event.batch, (start_ns, stop_ns))
        extents[event.batch] = min(low, start_ns), max(high, stop_ns)
    return extents


def _draw_axis(stretch: Stretch, zero_ns: int, top: float, y: float) -> tuple[list[str], float]:
    """The elements of the grid and of an axis in milliseconds, and the y of their lower end.

    zero_ns: the time at which the axis has 0. top, y: upper and lower end of the grid.
    """
    step_ms = _tick_step((stretch.stop_ns - stretch.start_ns) / 1e6)
    first = math.ceil((stretch.start_ns - zero_ns) / 1e6 / step_ms)
    last = math.floor((stretch.stop_ns - zero_ns) / 1e6 / step_ms)
    elements = []
    for number in range(first, last + 1):
        x = stretch.x(zero_ns + number * step_ms * 1e6)
        elements += [
            _draw_rule(x, top - 4, y + 2),
            _draw_text(x, y + 14, f"{number * step_ms:,.10g}", "tick"),
        ]
    elements.append(_draw_text(LEFT - 8, y + 14, "ms", "lane"))
    return elements, y + 14


def _tick_step(length_ms: float) -> float:
    """Milliseconds between two ticks: a round number that gives at most about NUM_TICKS ticks."""
    least = length_ms / NUM_TICKS
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= least)


def _duration(event: Event) -> str:
    return f"{significant(_duration_ns(event) / 1e6)} ms"


def _wrap_svg(elements: list[str], size: tuple[int, int], title: str, description: str) -> str:
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


def _draw_text(x: float, y: float, text: str, kind: str = "") -> str:
    """A text element with its baseline at y."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{escape(kind)}">{escape(text)}</text>'


def _draw_box(x: float, y: float, size: tuple[float, float], part: Part, hint: str) -> str:
    """A box in the colour of the part, with a hint that shows under the pointer."""
    width, height = size
    box = f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" '
    return f'{box}fill="{COLOURS[part]}"><title>{escape(hint)}</title></rect>'


def _draw_rule(x: float, top: float, bottom: float) -> str:
    """A vertical line of the grid."""
    return f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
