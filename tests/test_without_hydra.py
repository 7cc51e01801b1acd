"""What `make gpu` relies on: the Python API runs where Hydra and MLflow are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import psutil
import pytest
from absent import RUNTIME_ONLY, without
from options import REPOSITORY, compose_job, plainly_composed, script

CAMPAIGN = """
import sys
from pathlib import Path

from plain_jobs import plain_job
from fastloop.campaign import Entry, Sweep, run_campaign
from fastloop.environment import describe
from fastloop.launchers.single import Single
from fastloop.result import Result, metrics
from fastloop.reporting.document import compose
from fastloop.reporting.page import page
from fastloop.trackers.none import NoTracker
from fastloop.tracking import Tracking

given = {"dataset": "mydataset", "dataset__count": 37, "dataset__shape": [4], "trials": 1}
folder = Path(sys.argv[1])


def entry(loader):
    job = plain_job(**given, loader=loader, epochs=1, batch_size=8)
    tags = {"config_hash": loader, "device": "cpu", "sweep": "a/b"}
    result = Result(name=loader, loader=loader, dataset="mydataset", params={}, tags=tags)
    launcher = Single(isolation="forkserver")
    return Entry(job=job, launcher=launcher, folder=folder / loader, config_yaml="", result=result)


if __name__ == "__main__":
    sweep = Sweep(profile=False, baseline=None, interleave=True, report=False, resume=None,
                  retry_failed=False, wait=False, allow_concurrent=False)
    entries = [entry(loader) for loader in ("np_memmap", "tensorclass_memmap", "raw")]
    tracking = Tracking(NoTracker(), folder)
    results = run_campaign(entries, sweep, tracking, lambda step: None)
    for one in results:
        figures = metrics(one)
        print(one.name, one.status, one.status_reason, "training/samples_per_s" in figures)
    assert not {"hydra", "omegaconf", "mlflow"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_campaign_runs_through_the_python_api(tmp_path):
    (tmp_path / "campaign.py").write_text(CAMPAIGN)
    folder = str(tmp_path / "results")
    done = without(RUNTIME_ONLY, tmp_path, "campaign.py", folder)
    assert done.returncode == 0, done.stderr
    names = ("np_memmap", "tensorclass_memmap", "raw")
    assert done.stdout.splitlines() == [f"{name} FINISHED  True" for name in names]


def test_the_tests_compose_their_jobs_without_hydra_as_with_it():
    overrides = ("dataset=mydataset", "dataset.shape=[5,3]", "loader=raw", "seed=3", "epochs=2")
    assert plainly_composed(*overrides) == compose_job(*overrides)
    several = ("benchmark=[training,inference]", "execution=cuda_graph", "num_workers=2")
    assert plainly_composed(*several) == compose_job(*several)


@pytest.mark.slow
def test_the_gpu_tests_are_collected_without_hydra(tmp_path):
    files = [
        one for one in REPOSITORY.glob("tests/test_*.py") if "pytest.mark.gpu" in one.read_text()
    ]
    arguments = ("-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-o", "addopts=", "-p")
    done = without(RUNTIME_ONLY, tmp_path, *arguments, "no:cacheprovider", *map(str, sorted(files)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_yardstick.py" in done.stdout


def run_small(tmp_path, *arguments: str):
    script_ = str(REPOSITORY / "experiments" / "gpu.py")
    return without(RUNTIME_ONLY, tmp_path, script_, "--out", "out", *arguments)


@pytest.mark.slow
def test_a_part_without_a_gpu_leaves_figures_and_pictures(tmp_path):
    parts = "machine,hidden,pipeline_steps,copies"
    done = run_small(tmp_path, "--device", "cpu", "--small", "--parts", parts)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    states = {name: part["state"] for name, part in figures["parts"].items()}
    assert states == dict.fromkeys(parts.split(","), "done")
    steps = figures["parts"]["pipeline_steps"]
    assert any("samples_per_s" in row for row in steps["rows"])
    assert any(one.startswith("pinned: unsupported") for one in steps["left_out"])
    assert {one.name for one in (tmp_path / "out").iterdir()} == {
        *("figures.json", "figures.md", "log.txt", "headlines.png", "experiments.png")
    }
    table = (tmp_path / "out" / "figures.md").read_text()
    assert all(f"\n## {name}\n" in table for name in states)


@pytest.mark.slow
def test_a_command_that_is_ended_leaves_what_it_knows_and_nothing_running(tmp_path):
    script_, out = str(REPOSITORY / "experiments" / "gpu.py"), tmp_path / "out"
    arguments = ("--device", "cpu", "--small", "--parts", "hidden,pinning", "--out", str(out))
    with subprocess.Popen(
        [sys.executable, "-u", script_, *arguments], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        started = (line for line in running.stdout if line.startswith("pinning: "))
        assert " s of " in next(started)
        while not (parts := psutil.Process(running.pid).children()):
            time.sleep(0.01)
        running.terminate()
        assert running.wait() == 1
        assert not any(part.is_running() for part in parts)
    figures = json.loads((out / "figures.json").read_text())
    assert figures["parts"]["hidden"]["state"] == "done"
    assert "hidden behind the step: " in (out / "figures.md").read_text()
    assert (out / "headlines.png").stat().st_size > 1000


@pytest.mark.slow
def test_without_a_cuda_device_it_says_so_in_one_line(tmp_path):
    done = run_small(tmp_path, "--device", "cuda:99")
    assert done.returncode == 1
    assert done.stderr.startswith("make gpu: no CUDA device 99 is here")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_part_that_ends_early_leaves_its_rows_and_the_others(tmp_path, monkeypatch):
    gpu = script("gpu")
    parts = script("gpu_parts")
    given = parts.Given(device="cpu", seconds=1.0, file=tmp_path / "part.json", small=True)
    given.keep([{"name": "a", "samples_per_s": 2.0}, {"name": "b", "why": "unsupported: no"}])
    given.keep([{"name": "a", "samples_per_s": 2.0}, {"name": "b", "why": "ValueError: x"}])
    found = json.loads(given.file.read_text())
    (tmp_path / "log").write_text("one\ntwo\n")
    judged = gpu._judged(found, "done", tmp_path / "log")
    assert judged["state"] == "done, with failures"
    assert judged["tail"] == ["one", "two"]
    assert "| b |  | ValueError: x |" in "\n".join(script("gpu_report").table(judged["rows"]))
    quiet = gpu._judged({"rows": [{"name": "b", "why": "unsupported: no"}]}, "done", given.file)
    assert quiet["state"] == "done"
    assert quiet["left_out"] == ["b: unsupported: no"]


def test_a_part_that_does_not_end_is_ended(tmp_path, monkeypatch):
    gpu = script("gpu")
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "hangs.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    (folder / "fails.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(gpu, "REPOSITORY", tmp_path)
    environment = {"PATH": ""}
    assert gpu._child(["hangs.py"], environment, tmp_path / "log", 0.2) == "ended after 0 s"
    assert gpu._child(["fails.py"], environment, None, 60) == "failed: exit status 3"


def test_the_share_of_a_copy_behind_steps_is_that_of_its_time():
    headlines = script("gpu_headlines")
    copies = [(0.0, 2.0), (3.0, 4.0), (9.0, 10.0)]
    steps = [(1.0, 3.5), (5.0, 6.0), (9.25, 9.5)]
    assert headlines.overlap(copies, steps) == 1.0 + 0.5 + 0.25
    assert headlines.overlap(copies, []) == 0


HIDDEN = [{"name": "ring", "hidden_share": 0.914}, {"name": "late", "why": "left out: no time"}]
BANDWIDTH = [
    {"name": "64 MiB, pinned", "mb_per_s": 50_000.0, "share_of_pinned_copy": 1.0},
    {"name": "64 MiB, pageable", "mb_per_s": 9_000.0, "share_of_pinned_copy": 0.18},
    {"name": "naive", "mb_per_s": 2_000.0, "share_of_pinned_copy": 0.04},
    {"name": "workers", "mb_per_s": 8_000.0, "share_of_pinned_copy": 0.16},
]
STALL = [
    {"name": "naive", "stall_fraction": 0.87},
    {"name": "device resident", "stall_fraction": 0.02},
    {"name": "pinned", "stall_fraction": 0.5},
]


def test_the_headlines_are_a_line_each_and_say_what_is_missing():
    headlines = script("gpu_report").headlines
    parts = {"hidden": HIDDEN, "bandwidth": BANDWIDTH, "stall": STALL}
    assert headlines({name: {"rows": rows} for name, rows in parts.items()}) == [
        "share of the copy hidden behind the step: 91.4 % (ring)",
        "host-to-device bandwidth, of the pinned copy's 50.0 GB/s: 16 % (workers, the best), "
        "4 % (naive)",
        "stall fraction of resnet18 at bf16: 2 % (device resident, the best), 87 % (naive)",
    ]
    assert all(one.endswith("not measured") for one in headlines({}))
    assert len(headlines({"bandwidth": {"rows": BANDWIDTH[:2]}})) == 3


def test_tests_that_were_skipped_and_those_that_had_no_turn_are_told():
    seen = script("gpu_tests").Tests()
    lines = [
        "collected 90 items / 87 deselected / 3 selected\n",
        "tests/test_a.py::test_one[x-y] PASSED        [ 33%]\n",
        "tests/test_a.py::test_two SKIPPED (no GPU)    [ 66%]\n",
        "something else\n",
    ]
    assert [seen.told(line) for line in lines] == [True, True, True, False]
    assert seen.rows == [
        {"name": "test_a.py::test_one[x-y]", "outcome": "passed"},
        {"name": "test_a.py::test_two", "outcome": "skipped"},
    ]
    assert seen.left_out() == ["1 of 3 tests: no time was left"]
    seen.told("tests/test_a.py::test_three FAILED        [100%]\n")
    seen.told("SKIPPED [1] tests/test_a.py:3: no GPU\n")
    seen.waiting = ["test_b.py"]
    assert seen.left_out() == [
        "SKIPPED [1] tests/test_a.py:3: no GPU",
        "test_b.py: no time was left",
    ]


@pytest.mark.parametrize("looks_first", [False, True])
def test_jobs_have_their_trials_and_looks_in_the_order_asked_for(outputs, looks_first):
    given = {"dataset": "mydataset", "dataset__count": 37, "dataset__shape": [4], "epochs": 1}
    plain_job, kept = script("plain_jobs").plain_job, []
    jobs = {
        "a": plain_job(**given, benchmark="training", loader="np_memmap", device="cpu"),
        "no": plain_job(**given, benchmark="training", loader="np_memmap", device="cuda:99"),
    }
    script("in_time").rows_in_time(jobs, 60.0, kept.append, looks_first)
    assert kept[0] == [{"name": name, "why": "left out: no time was left"} for name in jobs]
    assert ("stall_fraction" in kept[1][0]) == looks_first
    assert ("samples_per_s" in kept[1][0]) != looks_first
    row, refused = kept[-1]
    assert row["trials"] == 5
    assert 0 <= row["stall_fraction"] <= 1
    assert "why" not in row
    assert kept[1][0].get("trials") == (0 if looks_first else 1)
    assert refused["why"].startswith("unsupported: device=cuda:99")
    none: list = []
    script("in_time").rows_in_time(jobs, 0.0, none.append, looks_first)
    assert none == kept[:1]


def test_executions_are_told_beside_their_eager_step():
    rows = [
        {"name": "toynet, training, eager", "samples_per_s": 2.0, "times_the_first": 1.0},
        {"name": "resnet18, training, eager", "why": "left out: no time was left"},
        {"name": "toynet, training, compiled", "samples_per_s": 3.0, "times_the_first": 1.5},
        {"name": "resnet18, training, compiled", "samples_per_s": 3.0, "times_the_first": 1.5},
    ]
    told = script("gpu_parts")._beside_eager(rows)
    names = ["resnet18, training, eager", "resnet18, training, compiled"]
    assert [row["name"] for row in told] == [
        *names,
        *(name.replace("resnet18", "toynet") for name in names),
    ]
    assert [row.get("times_eager") for row in told] == [None, None, 1.0, 1.5]
    assert not any("times_the_first" in row for row in told)


def test_values_of_rows_are_plain():
    parts = script("gpu_parts")
    flat = parts.flat({"a": float("nan"), "b": (1.0, 2.0), "c": None, "d": "x"})
    assert flat == {"a": "nan", "b_low": 1.0, "b_high": 2.0, "c": None, "d": "x"}
    json.dumps(flat, allow_nan=False)
