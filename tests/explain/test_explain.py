"""`fastloop explain` on real jobs one of whose stages is slow, and on healthy ones."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from commands import run_fastloop
from options import SUPPORT, require_library

from fastloop.config.compose import compose_all, compose_job
from fastloop.core.load_text import load_text
from fastloop.core.machine_load import LoadSummary
from fastloop.explain.explain_job import check_request, explain_job
from fastloop.sweep.progress import Progress

pytestmark = pytest.mark.slow

LONG_STEP = ("model._target_=slow_stages.SlowNet", "+model.sleep_s=0.1")
QUICK_STEP = ("model._target_=slow_stages.SlowNet", "+model.sleep_s=0.004")
DATA = ("dataset._target_=slow_stages.Samples", "batch_size=16")
SETTINGS = (
    "benchmark=training",
    "torch_threads=1",
    "trials=3",
    "tracker=none",
    "min_window_s=0",
)
IN_ONE_PROCESS = ("isolation=inline",)
"""Passes start no processes, for tests of what is said about them."""
SLOW_DECODE = (*QUICK_STEP, "+dataset.sleep_s=0.006")
TRANSFORM = "slow_stages.SlowTransform"
SLOW_TRANSFORM = (*QUICK_STEP, f"transform._target_={TRANSFORM}", "+transform.sleep_s=0.004")
SLOW_COLLATE = (*QUICK_STEP, "collate._target_=slow_stages.slow_collate", "+collate.sleep_s=0.06")
WORKER = ("num_workers=1", "persistent_workers=true")
HIDDEN_DECODE = (*LONG_STEP, "+dataset.sleep_s=0.0002", *WORKER)
RARE_DECODE = (*QUICK_STEP, "+dataset.sleep_s=0.03", "+dataset.every=8")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A working folder with the modules of a user."""
    for name in ("slow_stages.py", "my_code.py"):
        shutil.copy(SUPPORT / name, tmp_path)
    return tmp_path


def explain(cwd: Path, *overrides: str):
    process = run_fastloop(*DATA, *SETTINGS, *overrides, cwd=cwd, command="explain")
    assert process.returncode == 0, process.stderr
    newest = max(cwd.glob("outputs/20*/*/explain.json"))
    assert {"timeline.svg", "timeline.json"} <= {path.name for path in newest.parent.iterdir()}
    return process.stdout, json.loads(newest.read_text())


def check_explained(text: str, values: dict, stage: str) -> None:
    """The stage is the greatest part and no other one is named; on a busy machine the rounds may
    differ so much that none is. test_ladder.py has the word of known rounds."""
    shares = {row["rung"]: row["share"]["value"] for row in values["ladder"]["rows"]}
    assert max(shares, key=shares.__getitem__) == stage
    assert values["verdict"]["word"] in (stage, "unattributed")
    assert f"verdict: {values['verdict']['word']}" in text
    assert values["ladder"]["batches"] == 4
    load = load_text(LoadSummary(**values["machine_load"]), "pass", "passes")
    assert " ".join(text.split()).startswith(load)
    assert values["timeline"]["coverage"] >= 0.98


@pytest.mark.heavy
@pytest.mark.nightly
def test_number_of_steps_that_are_left_is_true_once_the_changes_are_chosen(tmp_path, monkeypatch):
    given = ("loader=raw", "batches=4", "epochs=1", "benchmark=traversal", "torch_threads=1")
    given = (*given, "trials=2", "try=1", "min_window_s=0", "tracker=none", *IN_ONE_PROCESS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["explain", *given])
    request = check_request(compose_all(lambda _: 1))
    steps: list[str] = []
    told: list[tuple[int, int]] = []
    progress = Progress(
        begin_step=steps.append, expect_steps=lambda count: told.append((len(steps), count))
    )
    explain_job(request, lambda overrides: compose_job(*overrides), progress, tmp_path)
    (begun, left), *_ = told
    assert left > 1  # something is tried
    assert len(steps) == begun + left


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("overrides", "stage"),
    [
        pytest.param(HIDDEN_DECODE, "step", id="hidden", marks=pytest.mark.nightly),
        pytest.param(SLOW_TRANSFORM, "transform", id="transform", marks=pytest.mark.nightly),
        pytest.param(SLOW_COLLATE, "collate", id="collate", marks=pytest.mark.nightly),
        pytest.param((*SLOW_DECODE, *WORKER), "decode", id="worker", marks=pytest.mark.nightly),
        pytest.param(RARE_DECODE, "decode", id="every 8th sample", marks=pytest.mark.nightly),
    ],
)
def test_the_slow_stage_is_the_greatest_part(overrides, stage, folder):
    check_explained(*explain(folder, *overrides, "try=0", "trials=2", *IN_ONE_PROCESS), stage)


@pytest.mark.heavy
@pytest.mark.nightly
def test_what_is_predicted_is_tried(folder):
    """Sleeping is removed by both loaders that read a store. On a busy machine the model may miss
    the job, and gains may not be beyond noise; test_ladder.py has what is printed then."""
    text, values = explain(folder, *SLOW_DECODE, "try=1")
    check_explained(text, values, "decode")
    tried = {each["change"]: each for each in values["what_ifs"] if each["realised_gain"]}
    assert tried
    for change in {"loader=np_memmap", "loader=fastloop"} & set(tried):
        if tried[change]["predicted_gain"] is not None:
            assert tried[change]["predicted_gain"]["value"] > 0.3
        assert tried[change]["realised_gain"]["value"] > 0.3
    if values["best"]:
        assert values["best"] in tried.values()
        assert f"best: {values['best']['command']}" in text.splitlines()
    names = [each["name"] for each in values["causes"]]
    assert names[:3] == ["torch's threads", "the step", "number of workers"]


@pytest.mark.heavy
def test_a_loader_of_other_data_is_not_explained(folder):
    wrong = (*DATA[:1], "loader._target_=my_code.without_last", "batch_size=16")
    process = run_fastloop(*wrong, *SETTINGS, *QUICK_STEP, cwd=folder, command="explain")
    assert process.returncode == 1
    assert process.stderr.startswith("invalid: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("try=11",), "try=11: allowed: at most 10"),
        (("what_if=['batch_size=0']",), "what_if=batch_size=0: batch_size=0: "),
        (("what_if=['nosuch=1']",), "what_if=nosuch=1: "),
        (("what_if=nope",), "what_if=nope: allowed: a list of overrides, as \"what_if=['batch"),
        (("what_if=['batch_size']",), "what_if=batch_size: allowed: overrides"),
        (("what_if=['prefetch_factor=2']",), "unsupported: prefetch_factor=2 needs workers"),
        (("try=-1",), "try=-1: allowed: 0 or more"),
        (("trials=0",), "trials=0: allowed: auto, or a whole number from 1 on"),
        (("-m", "num_workers=0,1"), "explain takes one job; fastloop run -m num_workers=0,1"),
        (("prefetch_factor=2",), "unsupported: prefetch_factor=2 needs workers: num_workers is 0"),
        (("launcher=torchrun", "launcher.nproc_per_node=2"), "explain with 2 processes: allowed"),
        (("loader._target_=my_code.plain",), "my_code.plain brings its own data"),
        # One sample shows this: no other one is read.
        (("dataset._target_=slow_stages.WithoutClasses",), "benchmark=traversal takes any"),
    ],
)
def test_what_cannot_be_explained_is_one_line(overrides, message, folder):
    process = run_fastloop(*overrides, cwd=folder, command="explain")
    assert process.returncode == 1
    assert process.stdout == ""
    assert message in process.stderr
    assert process.stderr.count("\n") == 1
    assert not list(folder.glob("outputs/20*"))


@pytest.mark.heavy
@pytest.mark.nightly
def test_hang_is_named_within_the_limit_of_a_pass(folder):
    stuck = ("dataset._target_=slow_stages.StuckInWorker", "num_workers=1", "trial_timeout_s=20")
    process = run_fastloop(*DATA[1:], *SETTINGS, *QUICK_STEP, *stuck, cwd=folder, command="explain")
    assert process.returncode == 1
    message = process.stderr.splitlines()[0]
    assert re.search(r"timeout: no result after 20 s: waits in next\(\) of a DataLoader", message)
    assert re.search(r"worker 0 \(pid \d+\) is in __getitem__ \(slow_stages.py:\d+\)", message)


STREAM = ("loader=webdataset", "batch_size=8", *IN_ONE_PROCESS)
"""A loader that shuffles by itself: it has no first batches that other loaders have, too."""


@pytest.mark.heavy
@pytest.mark.nightly
def test_loader_that_shuffles_itself_is_explained_by_whole_epochs(folder):
    require_library("webdataset")
    _, values = explain(folder, *STREAM, "try=0", *LONG_STEP)
    assert values["ladder"]["batches"] == 8
    assert values["timeline"]["batches"] == 8


@pytest.mark.heavy
@pytest.mark.nightly
def test_too_long_epochs_of_a_loader_that_shuffles_itself_are_refused_in_one_line(folder):
    require_library("webdataset")
    given = (*DATA, *SETTINGS, *STREAM, LONG_STEP[0], "+model.sleep_s=1")
    process = run_fastloop(*given, cwd=folder, command="explain")
    assert process.returncode == 1
    message = process.stderr.strip().splitlines()[-1]
    assert message.startswith("loader=webdataset shuffles the samples itself")
    assert "allowed: " in message
    assert not [*folder.glob("outputs/20*")]
