"""Charts of jobs with long names: no text covers another one or leaves its picture."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_results import result_of
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from fastloop.core.result import Attribution, Resources
from fastloop.reporting.charts import shorten, spread, wrap_label
from fastloop.reporting.pictures import pictures
from fastloop.reporting.summary import Comparison, summarize


def comparison_of(count: int) -> Comparison:
    """Jobs with names of about 60 characters, and nearly equal rates and memory."""
    results = []
    for place in range(count):
        known = result_of([1.0 + place / 100, 1.1, 1.2], 10, 20.0)
        resources = Resources(peak_pss_mib=300.0 + place)
        waits = [0.01, 0.02 + place / 1000, 0.03]
        attribution = Attribution(
            seconds=1.0, first_batch_s=0.1, wait_s=waits, place_s=waits, cpu_s=1.0,
            resources=resources,
        )  # fmt: skip
        loader = "tensorclass_memmap" if place % 2 else "torch_storage"
        name = f"{loader} a multiprocessing_context=forkserver{place} prefetch_factor={place}"
        results.append(
            replace(
                known, name=name, loader=loader, status="FINISHED",
                attribution={"traversal": attribution},
            )
        )  # fmt: skip
    return summarize(results)[0].comparisons[0]


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other, and texts that leave the figure."""
    figure.draw_without_rendering()
    texts = [
        text
        for text in figure.findobj(Text)
        # not tick labels, which also exist outside of the axes' limits
        if isinstance(text, Text) and re.search("[a-z]", text.get_text())
    ]
    boxes = [Text.get_window_extent(text) for text in texts]  # an annotation's has its line too
    names = [text.get_text() for text in texts]
    page = figure.bbox
    outside = [
        (name, "page")
        for name, box in zip(names, boxes, strict=True)
        if box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1 or box.y0 < page.y0 - 1
    ]
    return outside + [
        (names[one], names[other])
        for one in range(len(boxes))
        for other in range(one)
        if names[one] != names[other] and _overlap(boxes[one], boxes[other])
    ]


def _overlap(one: Bbox, other: Bbox) -> bool:
    """True if the boxes share more than a pixel in both directions."""
    both = Bbox.intersection(one, other)
    return both is not None and both.width > 1 and both.height > 1


def test_name_that_the_font_lacks_is_drawn_without_a_warning():
    known = result_of([1.0, 1.1, 1.2], 10, 20.0)
    jobs = [replace(known, name=f"{each} x", loader=each, status="FINISHED") for each in "数a"]
    for picture in pictures(summarize(jobs)[0].comparisons[0]):
        assert "数" in picture.svg()
        assert picture.png()


@pytest.mark.heavy
@pytest.mark.parametrize("count", [2, 8, 20])
def test_texts_of_a_picture_neither_overlap_nor_leave_it(count):
    drawn = pictures(comparison_of(count))
    assert len(drawn) == 5
    assert {picture.name: overlaps(picture.figure) for picture in drawn} == {
        picture.name: [] for picture in drawn
    }


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).map(sorted))
def test_labels_stay_apart_and_inside(heights):
    moved = spread(heights, 0.05)
    assert moved[-1] <= 1
    assert all(after - before > 0.0499 for before, after in pairwise(moved))
    if all(after - before > 0.05 for before, after in pairwise(heights)):
        assert moved == heights


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80))
def test_label_is_at_most_two_lines_long(text):
    lines = wrap_label(text, 24).split("\n")
    assert len(lines) <= 2
    assert max(map(len, lines)) <= 24
    assert len(shorten(text, 24)) <= 24
    assert shorten("0123456789", 5) == "01\u202689"


def seconds_chart(seconds: dict[str, list[float]]) -> Figure:
    results = [
        replace(result_of(values, 10, 20.0), name=f"{name} a", loader=name, status="FINISHED")
        for name, values in seconds.items()
    ]
    drawn = pictures(summarize(results)[0].comparisons[0])
    return next(picture.figure for picture in drawn if picture.name.endswith("seconds"))


@pytest.mark.parametrize(("slowest", "scale"), [(1.9, "linear"), (2.1, "log")])
def test_axis_of_seconds_is_logarithmic_beyond_a_factor_of_twenty(slowest, scale):
    figure = seconds_chart({"raw": [slowest] * 3, "fast": [0.1] * 3})
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    assert axes.get_xlabel().startswith("ms")


def test_seconds_are_dots_with_time_ratio_and_rank_beside_them():
    figure = seconds_chart({"raw": [0.1, 0.11, 0.105], "fast": [0.001, 0.0011, 0.00105]})
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["1.05", "105", "100\u00d7", "1\u00d7", "1", "2", "ms", "speed", "rank"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in dots] == pytest.approx([1.05, 105.0])
    first, second = (line.get_markeredgecolor() != line.get_color() for line in dots)
    assert (first, second) == (True, False)  # the winner is ringed
    assert axes.get_xlim()[0] < 1.0
    assert axes.get_xlim()[1] > 105
