"""Notes: a line for each kind of caveat, with the jobs that have it."""

from __future__ import annotations

from dataclasses import replace

from known_results import result_of

from fastloop.reporting.notes import group_caveats
from fastloop.reporting.terminal import format_tables


def results_with(**flags: list[str]):
    result = replace(result_of([1.0, 1.1], 10, 20.0), tags={"device": "cpu"}, status="FINISHED")
    return [replace(result, name=name, flags=flags[name]) for name in flags]


def test_caveats_of_a_kind_share_a_line_with_the_details_of_each_job():
    results = results_with(
        raw=["foreign load: load average 2.6", "traversal: unstable: std 11 % of mean"],
        preload=["traversal: unstable: std 30 % of mean", "traversal: 1 outlier"],
        fast=["traversal: 1 outlier", "skipped: 2 samples, the first: /a: b"],
        quiet=[],
    )
    assert [(note.kind, note.text) for note in group_caveats(results)] == [
        ("foreign load", "raw (load average 2.6)"),
        ("traversal: unstable", "raw (std 11 % of mean), preload (std 30 % of mean)"),
        ("traversal: 1 outlier", "preload, fast"),
        ("skipped", "fast (2 samples, the first: /a: b)"),
    ]


def test_details_that_all_jobs_share_are_printed_once():
    results = results_with(raw=["concurrent: other work"], preload=["concurrent: other work"])
    assert [note.text for note in group_caveats(results)] == ["raw, preload (other work)"]
    assert format_tables(results).count("other work") == 1
    assert group_caveats(results_with(raw=[])) == []
