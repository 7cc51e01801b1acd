"""Explanations of jobs in tables and pictures."""

from __future__ import annotations

import re
from base64 import b64decode
from dataclasses import replace

import pytest
from known_results import result_of

from fastloop.core.explanation import Explanation, InstrumentedEpoch, Ladder, LadderRow, Verdict
from fastloop.core.parts import Part
from fastloop.core.result import Result
from fastloop.core.result_io import load_results, load_timelines, save
from fastloop.core.stats import Estimate
from fastloop.core.tracked_metrics import metrics
from fastloop.reporting.pictures import pictures_of_ladders
from fastloop.reporting.report_content import compose_document
from fastloop.reporting.report_files import write_report
from fastloop.reporting.terminal_table import format_tables

BENCHMARKS = ("traversal", "training", "inference")


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, is_interval=True)


def explanation_of(benchmark: str, word: Part) -> Explanation:
    """Half of the epoch of 100 batches is steps; the rest is decoding."""
    rows = [
        LadderRow(
            rung=rung, exposed_ms=estimate(5), share=estimate(share), hidden_ms=0.0, sure_greatest=1
        )
        for rung, share in ((Part.STEP, 0.5), (Part.COPY, -0.01), (Part.DECODE, 0.5))
    ]
    ladder = Ladder(
        rows=tuple(rows),
        batches=100,
        epoch_s=estimate(1.0),
        perfect_s=estimate(0.5),
        wait_share=estimate(0.5),
        explained=1.0,
        residue=0.0,
        start_up_s=estimate(0.0),
        noise=0.0,
        slower_steps=None,
        rounds=3,
    )
    return Explanation(
        name="raw a",
        benchmark=benchmark,
        device="cpu",
        rounds=3,
        window_batches=100,
        model_ratio=1.0,
        loader_samples_per_s=10.0,
        limit_samples_per_s=None,
        limit_origin=None,
        verdict=Verdict(word=word, sentences=("It waits",)),
        ladder=ladder,
        what_ifs=(),
        best=None,
        timeline=InstrumentedEpoch(seconds=0.5, batches=29, coverage=1.0, shares={"wait": 1.0}),
    )


def job(name: str, explanation: Explanation | None = None) -> Result:
    known = result_of([1.0, 1.1, 1.2], samples=100, limit=200.0)
    trials = [
        replace(trial, benchmarks=dict.fromkeys(BENCHMARKS, trial.benchmarks["traversal"]))
        for trial in known.trials
    ]
    loader, tags = name.split(" ", maxsplit=1)[0], {"device": "cpu"}
    return replace(
        known,
        name=name,
        loader=loader,
        tags=tags,
        status="FINISHED",
        trials=trials,
        explanation=explanation,
    )


@pytest.mark.parametrize("word", [Part.DECODE, Part.UNATTRIBUTED])
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_names_the_part_in_the_explained_benchmark(word, benchmark, width):
    jobs = [job("raw a", explanation_of(benchmark, word)), job("preload a")]
    lines = format_tables(jobs, width=width).splitlines()
    assert max(map(len, lines)) <= width
    (head,) = [line for line in lines if "  limit why" in line]
    start = head.index("why")
    (row,) = [line for line in lines[lines.index(head) + 1 :] if line.startswith("raw")][:1]
    assert row[start:].split()[0] == word
    before = head[:start].split()
    assert before[-4] == f"{benchmark},"


def test_table_without_explanations_has_no_such_column():
    assert "why" not in format_tables([job("raw a"), job("preload a")])


def test_report_begins_with_the_explanation():
    explained = explanation_of("training", Part.DECODE)
    document = compose_document([job("raw a", explained), job("preload a")])
    assert document.verdicts[0] == ("Why, raw: decode", "It waits.")
    assert document.first_pictures[0].name == "explained"
    table = document.overview[0]
    assert table.head == ("", "wait", "step", "copy", "decode")
    assert table.rows[0][2] == "50 % [50 %, 50 %]"
    ranking = next(each for each in document.sections if each.heading.startswith("Training"))
    place = ranking.table.head.index("why")
    assert {row[0]: row[place] for row in ranking.table.rows} == {"raw": "decode", "preload": "—"}


def test_page_runs_no_script_of_a_strangers_timeline(tmp_path):
    save(job("raw a", explanation_of("training", Part.DECODE)), tmp_path)
    script = "<script>alert(document.domain)</script>"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)">{script}</svg><b id="x">'
    (tmp_path / "timeline.svg").write_text(svg)
    results = load_results(tmp_path, "folder")
    (page,) = write_report(results, tmp_path / "report", "", ["html"], load_timelines(tmp_path))
    text = page.read_text()
    images = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert [b64decode(image).decode() for image in images] == [svg]
    assert re.findall(r'<script|onload|<b id="x">', text) == []


def test_picture_has_a_bar_for_each_job():
    explained = explanation_of("training", Part.DECODE)
    (picture,) = pictures_of_ladders([job("raw a", explained), job("x a", explained), job("y a")])
    svg = picture.svg()
    assert svg.count(">decode<") == 2
    assert ">10<" in svg  # ms a batch


def test_metrics_hold_the_parts():
    figures = metrics(job("raw a", explanation_of("training", Part.DECODE)))
    explain = {name: value for name, value in figures.items() if name.startswith("explain/")}
    assert explain == {
        "explain/ceiling_seconds": 0.5,
        "explain/exposed_wait_fraction": 0.5,
        "explain/step_fraction": 0.5,
        "explain/copy_fraction": -0.01,
        "explain/decode_fraction": 0.5,
    }
