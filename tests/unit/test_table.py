"""Table at the end of a sweep: at most 80 columns, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_results import result_of

from fastloop.core import stats
from fastloop.core.number_text import show_fine_percent, show_time, significant
from fastloop.core.result import Result
from fastloop.reporting.outcome_sentences import verdict
from fastloop.reporting.summary import summarize
from fastloop.reporting.terminal_table import format_tables

BENCHMARKS = ("traversal", "training", "a_user_benchmark_option")


def job(name: str, seconds: list[float], fraction: float, **changes: object) -> Result:
    """Finished job with these seconds per trial, at this fraction of the machine's limit."""
    known = result_of(seconds, samples=100, limit=100 / stats.median(seconds) / fraction)
    trials = [
        replace(trial, benchmarks=dict.fromkeys(BENCHMARKS, trial.benchmarks["traversal"]))
        for trial in known.trials
    ]
    return replace(
        known,
        name=name,
        loader=name.split(" ", maxsplit=1)[0],
        tags={"device": "cpu"},
        status="FINISHED",
        trials=trials,
        **changes,
    )


def rows_of(table: str, label: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith(label)]


@pytest.mark.parametrize(
    ("seconds", "fraction", "shown", "share"),
    [
        (2.0, 0.136, "2.0 (0.0)", "13.6"),
        (2.0, 0.9994, "2.0 (0.0)", "99.9"),
        (2.0, 0.9996, "2.0 (0.0)", "100"),
        (2.0, 1.365, "2.0 (0.0)", "136"),
        (2.0, 99.99, "2.0 (0.0)", "9999"),
        (2.0, 123.0, "2.0 (0.0)", ">999"),
        (0.0017, 0.5, "1.7 (0.0)", "50.0"),
        (12345.5, 0.5, "12345.5 (0.0)", "50.0"),
        (1e6, 0.5, "1000000.0 (0.0)", "50.0"),
        (2e6, 0.5, "2000000.0 (0.0)", "50.0"),
    ],
)
def test_table_cell_stays_in_its_columns(seconds, fraction, shown, share):
    table = format_tables([job("raw x", [seconds] * 2, fraction)])
    cell = f"{shown:>16}    - {share:>4} %"  # a single job has no rank
    assert rows_of(table, "raw  ") == [f"{'raw':<23}{cell} {cell}", f"{'raw':<23}{cell}"]
    assert max(map(len, table.splitlines())) <= 80


def test_table_shows_no_deviation_for_one_trial():
    first, _ = rows_of(format_tables([job("raw x", [2.0], 1.365)]), "raw  ")
    assert first.split() == ["raw", *["2.0", "-", "136", "%"] * 2]


words = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=120)
texts = st.lists(words, min_size=1, max_size=6).map(" ".join)
lengths = st.lists(st.floats(min_value=1e-6, max_value=2e6), min_size=1, max_size=6)
figures = st.tuples(texts, lengths, st.floats(min_value=1e-9, max_value=1e9), texts)


@given(st.lists(figures, min_size=1, max_size=4, unique_by=lambda row: row[0]), texts)
def test_table_is_at_most_80_columns_wide(jobs, reason):
    results = [job(f"{name} x", *figures, caveats=[line]) for name, *figures, line in jobs]
    failed = replace(results[0], name=f"{reason} y", status="FAILED", status_reason=reason)
    table = format_tables([*results, failed])
    assert max(map(len, table.splitlines())) <= 80


def test_percentage_above_100_is_printed_without_an_exponent():
    shares = (0.00042, 0.0136, 0.42, 0.99, 0.996, 1.365, 20.0, 1e-7, 0.0, -1.5)
    shown = ("0.042", "1.4", "42", "99", "100", "136", "2000", "0.00001", "0", "-150")
    assert [*map(show_fine_percent, shares)] == [f"{each} %" for each in shown]
    (group,) = summarize([job("raw x", [2.0] * 5, 1.365)])
    assert "136 % of what the machine can do" in verdict(group.comparisons[0])


LONG = "raw x decoder=torchvision num_workers=4"


@pytest.mark.parametrize("width", [0, 80, 100, 110, 400])
def test_long_name_stands_in_the_line_of_its_figures(width):
    results = [job(f"{LONG} batch_size={size}", [2.0] * 2, 0.5) for size in (8, 16)]
    results += [job("np_memmap x", [2.0] * 2, 0.5)]
    table = format_tables(results, width=width)
    rows = rows_of(table, "raw, torchvision, 4 workers, batch 16")
    assert len(rows) == (2 if width > 94 else 3)
    assert all("2.0 (0.0)    - 50.0 %" in row for row in rows)
    assert max(map(len, table.splitlines())) <= min(max(width, 80), 120)


def test_reason_follows_a_long_name_in_its_line():
    reason = "error " * 30
    failed = replace(job(LONG, [2.0], 0.5), status="FAILED", status_reason=reason)
    lines = format_tables([job("np_memmap x", [2.0], 0.5), failed]).splitlines()
    (first,) = [line for line in lines if line.startswith(LONG)]
    assert first.startswith(f"{LONG}  FAILED: error error")
    assert lines[lines.index(first) + 1].startswith(" " * 23 + "error")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.000012345, "0.0000123"),
        (0.01, "0.01"),
        (0.99949, "0.999"),
        (0.9996, "1"),
        (9.996, "10"),
        (99.96, "100"),
        (1230.4, "1,230"),
        (1234567.0, "1,234,567"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert significant(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.00009, "90 us"),
        (0.0008, "0.8 ms"),
        (0.1064, "106 ms"),
        (0.9999, "1,000 ms"),
        (1.2, "1.2 s"),
        (1234.5, "1,234 s"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds, text):
    assert show_time(seconds) == text


def test_table_and_verdict_have_the_same_unit():
    jobs = [job("raw x", [0.106] * 5, 0.5), job("np_memmap x", [0.00171] * 5, 0.5)]
    (group,) = summarize(jobs)
    assert "(1.71 ms against 106 ms; " in verdict(group.comparisons[0])
    table = format_tables(jobs)
    assert "traversal, ms" in table
    assert "1.7 (0.0)" in rows_of(table, "np_memmap")[0]
    assert "e+" not in table
