"""Short names and colours of jobs: distinct, and of what differs only."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_results import result_of

from fastloop.config.build_jobs import build_request
from fastloop.config.combinations import compose_listed_jobs
from fastloop.config.command_line import read_command_line
from fastloop.core.result import Result
from fastloop.reporting.caveat_groups import group_caveats
from fastloop.reporting.header import describe_setup
from fastloop.reporting.short_names import short_names
from fastloop.reporting.summary import DEFAULT_COLOUR, check_baseline, summarize
from fastloop.sweep.colours import place_colour
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.job_names import job_names
from fastloop.sweep.request import JobRequest


def requests_of(folder, *jobs: tuple[str, ...]) -> list[JobRequest]:
    combinations = compose_listed_jobs(read_command_line([]), jobs, folder)
    return [build_request(combination) for combination in combinations]


def names_of_jobs(folder, *jobs: tuple[str, ...]) -> list[str]:
    return job_names(requests_of(folder, *jobs))


def jobs(*names: str) -> list[Result]:
    known = replace(result_of([1.0, 1.1], 10, 20.0), status="FINISHED", tags={"device": "cpu"})
    return [
        replace(known, name=name, loader=name.split(" ")[0], dataset=(name + " ").split(" ")[1])
        for name in names
    ]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["raw digits"], ["raw"]),
        (["raw digits", "fastloop digits"], ["raw", "fastloop"]),
        (["raw digits", "raw mydataset"], ["digits", "mydataset"]),
        (
            [f"raw a decoder={d} num_workers={n}" for d in ("pil", "opencv") for n in (1, 2)],
            ["pil, 1 worker", "pil, 2 workers", "opencv, 1 worker", "opencv, 2 workers"],
        ),
        (
            ["raw a batch_size=64 order=random", "raw a batch_size=128 order=random"],
            ["batch 64", "batch 128"],
        ),
        (
            ["raw a pin_memory=true", "raw a pin_memory=false"],
            ["pin_memory=true", "pin_memory=false"],
        ),
        (
            ["raw a torch_threads=1", "raw a torch_threads=null"],
            ["torch threads 1", "torch_threads=null"],
        ),
        (["raw a +dataset.count=5", "raw a +dataset.count=7"], ["count 5", "count 7"]),
        (
            ["raw a dataset.count=5 loader.count=1", "raw a dataset.count=7 loader.count=2"],
            ["dataset.count 5, loader.count 1", "dataset.count 7, loader.count 2"],
        ),
        (["raw a", "fastloop a num_workers=2"], ["raw", "fastloop, 2 workers"]),
        (
            ["raw a root='/my x=1/a' seed=1", "raw a root=/my b seed=2"],
            ["root='/my x=1/a', seed 1", "root=/my b, seed 2"],
        ),
        (["raw a ~count", "raw b ~loader.size"], ["a, ~count", "b, ~size"]),
        (
            ["raw a order=raw x=b", "spdl a order=random x=random"],
            ["raw, order=raw, b", "spdl, order=random, x=random"],
        ),
    ],
)
def test_short_name_has_what_differs_in_words(names, expected):
    assert [*short_names(jobs(*names)).items()] == [*zip(names, expected, strict=True)]


words = st.text(st.sampled_from("ab1=.,+ _"), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=6, unique=True))
def test_short_names_are_distinct_and_never_empty(names):
    short = short_names(jobs(*names))
    assert [*short] == names
    assert len({*short.values()}) == len(names)


def test_report_of_one_loader_names_it_once():
    results = jobs("raw a decoder=pil num_workers=0", "raw a decoder=pil num_workers=2")
    results = [replace(each, params={"decoder": "pil"}) for each in results]
    (comparison,) = summarize(results)[0].comparisons
    assert {row.label for row in comparison.rows} == {"0 workers", "2 workers"}
    assert describe_setup(results) == "loader raw · decoder pil · device cpu"


def test_caveats_name_jobs_as_the_table_does():
    results = [replace(job, caveats=["concurrent"]) for job in jobs("raw a x=1", "raw a x=2")]
    assert [each.text for each in group_caveats(results)] == ["x 1, x 2"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((), ("order=random",), ["fastloop digits", "fastloop digits order=random"]),
        (
            ("loader.num_threads=1",),
            ("loader.num_threads=2",),
            ["fastloop digits num_threads=1", "fastloop digits num_threads=2"],
        ),
    ],
)
def test_name_of_a_job_is_its_loader_its_dataset_and_what_varies(tmp_path, first, second, expected):
    usual = ("loader=fastloop", "dataset=digits", "epochs=2")
    assert names_of_jobs(tmp_path, (*usual, *first), (*usual, *second)) == expected


def test_names_begin_with_what_tells_jobs_of_a_loader_and_dataset_apart(tmp_path):
    jobs = [
        ("loader=raw", "dataset=digits", "seed=1", "num_workers=0"),
        ("loader=raw", "dataset=digits", "seed=1", "num_workers=2"),
        ("loader=python_loop", "dataset=digits", "seed=2"),
    ]
    assert names_of_jobs(tmp_path, *jobs) == [
        "raw digits num_workers=0 seed=1",
        "raw digits num_workers=2 seed=1",
        "python_loop digits seed=2",
    ]


def test_argument_of_own_code_distinguishes_jobs_whatever_its_name(tmp_path):
    own = "dataset._target_=my_code.Recordings"
    jobs = [(own, f"+dataset.num_trials={count}", f"trials={count}") for count in (5, 6)]
    one, other = map(config_hash, requests_of(tmp_path, *jobs))
    assert one != other
    jobs = [(own, "+dataset.num_trials=5", f"trials={trials}") for trials in (5, 6)]
    one, other = map(config_hash, requests_of(tmp_path, *jobs))
    assert one == other


def test_setting_that_a_job_leaves_out_is_no_value_of_it():
    choices = {"loader": "raw", "dataset": "a"}
    requests = [
        SimpleNamespace(choices=choices, overrides=overrides)
        for overrides in (("~dataset.count=9",), ("seed=1",))
    ]
    assert job_names(requests) == ["raw a ~count", "raw a seed=1"]


def test_job_with_a_blank_in_a_value_is_a_baseline_and_a_title():
    results = jobs("raw a root='/my x' n=1", "raw a root='/my x' n=2", "raw b root='/my x'")
    check_baseline(results, "raw root='/my x' n=2")
    results = [
        replace(each, params={"epochs": epochs})
        for epochs, each in enumerate(jobs("raw a root='/my x'", "raw a root='/my y'"), 1)
    ]
    assert [group.title for group in summarize(results)] == ["a root='/my x'", "a root='/my y'"]


def test_short_name_is_a_baseline():
    results = jobs("raw a num_workers=0", "raw a num_workers=2")
    check_baseline(results, "2 workers")
    (comparison,) = summarize(results, "2 workers")[0].comparisons
    assert comparison.baseline == "2 workers"
    with pytest.raises(ValueError, match="allowed: raw, 0 workers, 2 workers, raw a num_workers=0"):
        check_baseline(results, "3 workers")


def test_header_counts_the_samples_that_an_epoch_delivers():
    (job,) = jobs("raw a")  # 10 samples in 5 epochs
    params = {"order": "subset", "order.fraction": 0.1, "order.indices": None, "epochs": 5}
    subset = replace(job, num_samples=1000, params=params | {"dataset.size": [48, 64]})
    assert describe_setup([subset]) == (
        "samples 2 of 1,000 · size 48 x 64 · order subset (fraction 0.1) · epochs per trial 5 · "
        "device cpu"
    )
    assert describe_setup([replace(job, num_samples=2)]).startswith("samples 2 · ")


def test_thirty_jobs_have_colours_of_their_own():
    colours = [place_colour(place) for place in range(30)]
    assert len({*colours}) == 30
    for colour in colours:
        parts = bytes.fromhex(colour[1:])
        assert 24 < (max(parts) + min(parts)) / 2 < 208


def test_picture_draws_a_job_in_its_colour():
    first, second = jobs("raw a x=1", "raw a x=2")
    tags = first.tags | {"mlflow.runColor": "#ff7f0e"}
    edited = second.tags | {"mlflow.runColor": "url(x)"}
    rows = (
        summarize([replace(first, tags=tags), replace(second, tags=edited)])[0].comparisons[0].rows
    )
    assert {row.label: row.colour for row in rows} == {"x 1": "#ff7f0e", "x 2": DEFAULT_COLOUR}
