"""Limits in words: tables, verdicts, reports, notes and files tell what a share is a share of."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from known_results import result_of

from fastloop.core.limit import LimitOrigin
from fastloop.core.result import Attribution, Result
from fastloop.core.result_io import RESULT_FILE, load, save
from fastloop.reporting.limit_text import describe_work
from fastloop.reporting.outcome_sentences import verdict
from fastloop.reporting.report_files import trials_csv
from fastloop.reporting.report_tables import ranking_table
from fastloop.reporting.summary import summarize
from fastloop.reporting.terminal_table import format_tables
from fastloop.sweep.caveats import find_caveats

ROWS = LimitOrigin(kind="rows", engine="np.take", cores=2, memcpy_fraction=0.57)
IMAGES = LimitOrigin(kind="decoded images", engine="turbojpeg", cores=2)
CROPS = LimitOrigin(kind="cropped images", engine="native decoder", cores=2)
STEPS = LimitOrigin(kind="steps")


def result_with(origin: LimitOrigin | None, name: str, limit: float = 20.0, **others) -> Result:
    """A finished job with that origin in traversal, and others in other benchmarks."""
    known = result_of([1.0, 1.0, 1.0], 10, limit)
    (window,) = known.trials[0].benchmarks.values()
    origins = {"traversal": origin, **others}
    windows = {key: replace(window, limit_origin=value) for key, value in origins.items()}
    trials = [replace(trial, benchmarks=windows) for trial in known.trials]
    tags = {"device": "cpu"}
    named = {"name": f"{name} b", "loader": name}
    return replace(known, trials=trials, tags=tags, status="FINISHED", **named)


def legend(*results: Result) -> str:
    """The last part of the line below the table."""
    lines = " ".join(format_tables(results, width=120).split())
    return lines.partition("difference; ")[2].partition(" traversal: ")[0]


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (IMAGES, "what 2 cores can decode"),
        (replace(IMAGES, cores=1), "what 1 core can decode"),
        (CROPS, "what 2 cores can decode, crop and resize"),
        (ROWS, "what 2 cores can gather in memory"),
        (STEPS, "what the steps alone can do"),
        (LimitOrigin(kind="copies"), "what can be copied to the device"),
        (None, "what the machine can do"),
    ],
)
def test_verdict_and_table_name_the_work_of_the_limit(origin, words):
    result = result_with(origin, "a")
    (comparison,) = summarize([result])[0].comparisons
    assert describe_work(origin) == words
    assert f"50 % of {words}" in verdict(comparison)
    assert legend(result) == f"limit: share of {words}"
    assert f"limit: share of {words}. memory" in ranking_table(comparison).legend


def test_table_tells_which_rows_have_which_limit():
    decoding, gathering = result_with(IMAGES, "raw"), result_with(ROWS, "np_memmap")
    assert legend(decoding, gathering) == (
        "limit: share of what 2 cores can decode (raw), "
        "of what 2 cores can gather in memory (np_memmap)"
    )


def test_table_tells_which_benchmark_has_which_limit():
    jobs = [result_with(ROWS, name, training=STEPS) for name in ("a", "c")]
    assert legend(*jobs) == (
        "limit: share of what 2 cores can gather in memory (traversal), "
        "of what the steps alone can do (training)"
    )


def test_report_names_engine_and_share_of_memcpy():
    jobs = [result_with(IMAGES, "raw"), result_with(ROWS, "np_memmap"), result_with(None, "old")]
    (comparison,) = summarize(jobs)[0].comparisons
    table = ranking_table(comparison)
    assert (
        "Measured limits: decoded images by turbojpeg; rows by np.take, 57 % of memcpy."
        in table.legend
    )


def test_trials_in_csv_have_the_kind_of_their_limit():
    rows = csv.DictReader(trials_csv([result_with(IMAGES, "raw")]).splitlines())
    assert {row["limit_kind"] for row in rows} == {"decoded images"}


@pytest.mark.parametrize("origin", [ROWS, IMAGES, CROPS, STEPS, None])
def test_origin_is_kept_in_the_result_file(tmp_path, origin):
    result = result_with(origin, "a")
    save(result, tmp_path)
    assert load(tmp_path) == result
    written = json.loads((tmp_path / RESULT_FILE).read_text())
    recorded = written["trials"][0]["benchmarks"]["traversal"]["limit_origin"]
    assert (recorded and recorded["kind"]) == (origin and origin.kind)


def test_result_file_of_a_version_without_origins_is_read(tmp_path):
    save(result_with(ROWS, "a"), tmp_path)
    path = tmp_path / RESULT_FILE
    written = json.loads(path.read_text())
    for trial in written["trials"]:
        del trial["benchmarks"]["traversal"]["limit_origin"]
    path.write_text(json.dumps(written))
    assert load(tmp_path) == result_with(None, "a")


@pytest.mark.parametrize(
    ("origin", "cause"),
    [
        (IMAGES, "its images were decoded before, or by a decoder that was not measured"),
        (CROPS, "its crops were made before, or by a decoder that was not measured"),
    ],
)
def test_note_on_a_decoder_above_the_limit_gives_a_cause_of_decoding(origin, cause):
    known = result_with(origin, "a", limit=5.0)
    pass_ = Attribution(
        seconds=1.0, first_batch_s=0.1, wait_s=[0.1], place_s=[0.0], cpu_s=1.0, runs_model=False
    )
    lines = find_caveats(replace(known, attribution={"traversal": pass_}), [])
    assert f"traversal: above the limit: 200 % of it, probably because {cause}" in lines
