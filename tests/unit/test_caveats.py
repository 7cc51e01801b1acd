"""Caveats: a line for each kind, with the jobs that have it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from known_results import result_of

from fastloop.core.result import Attribution, Shadow, Shuffling
from fastloop.data.shuffling import shuffling_of
from fastloop.reporting.caveat_groups import group_caveats
from fastloop.reporting.shuffling_quality import shuffles_less
from fastloop.reporting.terminal_table import format_tables
from fastloop.sweep.caveats import find_caveats


def results_with(**caveats: list[str]):
    result = replace(result_of([1.0, 1.1], 10, 20.0), tags={"device": "cpu"}, status="FINISHED")
    return [replace(result, name=name, caveats=caveats[name]) for name in caveats]


def test_caveats_of_a_kind_share_a_line_with_the_details_of_each_job():
    results = results_with(
        raw=["CPU oversubscribed: 8 workers on 2 cores", "traversal: unstable: std 11 %"],
        preload=["traversal: unstable: std 30 %, 1 outlier"],
        fast=["traversal: outliers: 1", "skipped: 2 samples, the first: /a: b"],
        quiet=[],
    )
    assert [(each.kind, each.text) for each in group_caveats(results)] == [
        ("CPU oversubscribed", "raw (8 workers on 2 cores)"),
        ("unstable", "raw (std 11 %), preload (std 30 %, 1 outlier)"),
        ("outliers", "fast (1)"),
        ("skipped", "fast (2 samples, the first: /a: b)"),
    ]


def test_job_without_details_has_no_empty_brackets():
    results = results_with(raw=["concurrent: other work"], preload=["concurrent"])
    assert [each.text for each in group_caveats(results)] == ["raw (other work), preload"]


def test_details_of_several_benchmarks_share_a_line():
    lines = ["traversal: unstable: std 11 %", "training: unstable: std 12 %"]
    (result,) = results_with(raw=lines)
    measured = next(iter(result.trials[0].benchmarks.values()))
    both = dict.fromkeys(("traversal", "training"), measured)
    result = replace(result, trials=[replace(trial, benchmarks=both) for trial in result.trials])
    (caveat,) = group_caveats([result])
    assert caveat.kind == "unstable"
    assert caveat.text == "raw (traversal: std 11 %; training: std 12 %)"


def test_details_that_all_jobs_share_are_printed_once():
    results = results_with(raw=["concurrent: other work"], preload=["concurrent: other work"])
    assert [each.text for each in group_caveats(results)] == ["raw, preload (other work)"]
    assert format_tables(results).count("other work") == 1
    assert group_caveats(results_with(raw=[])) == []


def test_processes_that_trials_left_running_are_counted_and_the_first_is_named():
    result = result_of([1.0, 1.1], 10, 20.0)
    first, second = result.trials
    trials = [replace(first, left_running=["python burner.py (pid 7)"]), second]
    lines = find_caveats(replace(result, trials=trials), [])
    assert "left running: 1 process, ended after the trial: python burner.py (pid 7)" in lines
    trials[1] = replace(second, left_running=["x (pid 9)"])
    lines = find_caveats(replace(result, trials=trials), [])
    note = "left running: 2 processes, ended after the trial, the first: python burner.py (pid 7)"
    assert note in lines


def test_traversal_that_is_faster_than_the_limit_has_a_caveat():
    known = result_of([1.0, 1.1], 100, 50.0)  # about 95 samples a second, and a limit of 50
    pass_ = Attribution(
        seconds=1.0, first_batch_s=0.1, wait_s=[0.1], place_s=[0.0], cpu_s=1.0, runs_model=False
    )
    name = next(iter(known.trials[0].benchmarks))
    result = replace(known, attribution={name: pass_})
    cause = "its rows lie next to each other, or were gathered before"
    line = f"{name}: above the limit: 191 % of it, probably because {cause}"
    assert line in find_caveats(result, [])
    trained = replace(known, attribution={name: replace(pass_, runs_model=True)})
    assert not any("above the limit" in line for line in find_caveats(trained, []))


def test_job_that_shuffles_less_than_another_of_its_order_has_its_quality_as_caveat():
    uniform = Shuffling(
        each_sample_once=True, new_order_each_epoch=True, distance=1.0, neighbours_kept=0.0
    )
    shadow = Shadow(number=0, epochs=2, shuffling=uniform)
    of_order = {name: {"order": name} for name in ("random", "sequential")}
    result = replace(result_of([1.0, 1.1], 10, 20.0), num_samples=1797)
    full = replace(result, shadow=shadow, params=of_order["random"])
    stored = replace(uniform, distance=0.8, neighbours_kept=0.25)
    buffered = replace(full, shadow=replace(shadow, shuffling=stored))
    line = "shuffles less: distance 0.80 of 1, 25 % of neighbours stay together"
    assert line in find_caveats(buffered, [full, buffered])
    assert line not in find_caveats(full, [full, buffered])
    in_order = replace(buffered, params=of_order["sequential"])
    assert line not in find_caveats(in_order, [full, in_order])
    few = [replace(each, num_samples=20) for each in (full, buffered)]
    assert line not in find_caveats(few[1], few), "20 samples may be so by chance"


@pytest.mark.parametrize(("num_samples", "batch_size"), [(50, 8), (203, 64), (203, 190)])
def test_uniform_shuffles_do_not_differ(num_samples, batch_size):
    rng = np.random.default_rng(0)
    orders = [rng.permutation(num_samples) for _ in range(40)]
    shuffles = [shuffling_of({0: places}, num_samples, batch_size) for places in orders]
    known = replace(result_of([1.0, 1.1], 10, 20.0), num_samples=num_samples)
    results = [
        replace(
            known,
            params={"batch_size": batch_size},
            shadow=Shadow(number=0, epochs=1, shuffling=shuffling),
        )
        for shuffling in shuffles
    ]
    assert not any(shuffles_less(one, other) for one in results for other in results)
