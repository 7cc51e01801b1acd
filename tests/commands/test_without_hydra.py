"""The Python API and `make gpu` run where Hydra and MLflow are not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest
from missing_libraries import RUNTIME_ONLY, run_without
from options import GPU_JOBS, REPOSITORY, compose_job

from experiments.gpu import headlines, jobs, parts, pytest_part, report
from experiments.gpu import run as gpu
from experiments.lib.job_file import job_nodes, read_job, write_jobs
from experiments.lib.time_budget import measure_in_time

OVERRIDES = (
    "dataset=mydataset",
    "dataset.count=37",
    "dataset.shape=[4]",
    "trials=1",
    "epochs=1",
    "batch_size=8",
    "min_window_s=0",
)
SWEEP_PROGRAM = """
import sys
from pathlib import Path

from experiments.lib.job_file import read_job
from fastloop.sweep.progress import Progress
from fastloop.sweep.run_rounds import run_sweep
from fastloop.sweep.settings import SweepSettings
from fastloop.options.launcher.single import SingleLauncher
from fastloop.core.tracked_metrics import metrics
from fastloop.core.result import Result
from fastloop.reporting.report_content import compose_document
from fastloop.reporting.html_report import render_html
from fastloop.options.tracker.none import NoTracker
from fastloop.sweep.sweep_job import SweepJob
from fastloop.sweep.tracking import SweepTracker

file, folder, overrides, *loaders = sys.argv[1:]
folder, overrides = Path(folder), overrides.split()


def make_job(loader):
    job = read_job(Path(file), f"loader={loader}", *overrides)
    tags = {"config_hash": loader, "device": "cpu", "sweep": "a/b"}
    result = Result(name=loader, loader=loader, dataset="mydataset", params={}, tags=tags)
    launcher = SingleLauncher(isolation="forkserver")
    return SweepJob(index=0, job=job, launcher=launcher, folder=folder / loader, config_yaml="",
                    result=result)


if __name__ == "__main__":
    sweep = SweepSettings(profile=False, baseline=None, interleave=True, report=False, resume=None,
                  retry_failed=False, wait=False, allow_concurrent=False)
    jobs = [make_job(loader) for loader in loaders]
    tracking = SweepTracker(NoTracker(), folder)
    results = run_sweep(jobs, sweep, tracking, Progress())
    for result in results:
        figures = metrics(result)
        print(result.name, result.status, result.status_reason, "training/samples_per_s" in figures)
    assert not {"hydra", "omegaconf", "mlflow"} & set(sys.modules)
"""


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_sweep_runs_through_the_python_api(tmp_path):
    names = ("np_memmap", "tensorclass_memmap", "raw")
    write_jobs(tmp_path / "jobs.json", [(f"loader={name}", *OVERRIDES) for name in names])
    (tmp_path / "sweep.py").write_text(SWEEP_PROGRAM)
    arguments = ("jobs.json", str(tmp_path / "results"), " ".join(OVERRIDES))
    process = run_without(RUNTIME_ONLY, tmp_path, "sweep.py", *arguments, *names)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [f"{name} FINISHED  True" for name in names]


FILES = {
    jobs.FILE: "python -m experiments.gpu.compose",
    GPU_JOBS: "python tests/gpu/record_gpu_jobs.py",
}


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_recorded_jobs_equal_those_composed_by_hydra(path):
    recorded = json.loads(path.read_text())
    all_overrides = [tuple(key.split()) for key in recorded["jobs"]]
    assert recorded == job_nodes(all_overrides), f"{FILES[path]} composes them anew"
    for overrides in all_overrides[::4]:  # equal nodes; their options are built alike
        # Tests on a GPU run in the environment at hand, so their jobs have no requirements.
        job = replace(compose_job(*overrides), loader_requirements=(), placement_requirements=())
        assert read_job(path, *overrides) == job


def test_job_file_has_the_jobs_of_every_part():
    assert {" ".join(overrides) for overrides in jobs.all_overrides()} == {
        *json.loads(jobs.FILE.read_text())["jobs"]
    }


def test_small_jobs_differ_from_large_ones_in_size_only():
    large, small = (jobs.part_jobs("stall", "cuda:1", small=small) for small in (False, True))
    assert large.keys() == small.keys()
    assert {job.device for job in small.values()} == {"cuda:1"}
    assert {(job.dataset.count, job.loading.batch_size) for job in small.values()} == {(8, 4)}
    assert {(job.dataset.count, job.loading.batch_size) for job in large.values()} == {(2048, 128)}
    workers = {name: job.loading.num_workers for name, job in large.items()}
    assert workers["naive"] == 0
    assert workers["workers"] == workers["prefetch in a thread"] >= 1


def test_unrecorded_job_is_named():
    with pytest.raises(KeyError, match=r"jobs\.json has no job loader=raw epochs=77"):
        read_job(jobs.FILE, "loader=raw", "epochs=77")


@pytest.mark.heavy
@pytest.mark.slow
def test_gpu_tests_are_collected_without_hydra(tmp_path):
    paths = REPOSITORY.glob("tests/*/test_*.py")
    files = [path for path in paths if "pytest.mark.gpu" in path.read_text()]
    arguments = ("-m", "pytest", "--collect-only", "-q", "-m", "gpu", "-o", "addopts=", "-p")
    process = run_without(
        RUNTIME_ONLY, tmp_path, *arguments, "no:cacheprovider", *map(str, sorted(files))
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "test_limits.py" in process.stdout


def run_small(tmp_path, *arguments: str):
    command = ("-m", "experiments.gpu.run", "--out", "out")
    return run_without(RUNTIME_ONLY, tmp_path, *command, *arguments)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_gpu_run_on_the_cpu_writes_figures_and_pictures(tmp_path):
    parts = "machine,hidden,pipeline_steps"
    process = run_small(tmp_path, "--device", "cpu", "--small", "--parts", parts)
    assert process.returncode == 0, process.stdout + process.stderr
    figures = json.loads((tmp_path / "out" / "figures.json").read_text())
    states = {name: part["state"] for name, part in figures["parts"].items()}
    assert states == dict.fromkeys(parts.split(","), "done")
    steps = figures["parts"]["pipeline_steps"]
    assert any("samples_per_s" in row for row in steps["rows"])
    assert any(reason.startswith("pinned: unsupported") for reason in steps["left_out"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("figures.json", "figures.md", "log.txt", "headlines.png", "experiments.png")
    }
    table = (tmp_path / "out" / "figures.md").read_text()
    assert all(f"\n## {name}\n" in table for name in states)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_terminated_gpu_run_keeps_its_figures_and_ends_its_processes(tmp_path):
    command, out = [sys.executable, "-u", "-m", "experiments.gpu.run"], tmp_path / "out"
    arguments = ("--device", "cpu", "--small", "--parts", "hidden,pinning", "--out", str(out))
    with subprocess.Popen(
        [*command, *arguments], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
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


@pytest.mark.heavy
@pytest.mark.slow
def test_gpu_run_without_a_cuda_device_prints_one_line(tmp_path):
    process = run_small(tmp_path, "--device", "cuda:99")
    assert process.returncode == 1
    assert process.stderr.startswith("make gpu: no CUDA device 99 is here")
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_failed_part_keeps_its_rows_and_log(tmp_path):
    run = parts.PartRun(device="cpu", seconds=1.0, file=tmp_path / "part.json", small=True)
    run.keep([{"name": "a", "samples_per_s": 2.0}, {"name": "b", "why": "unsupported: no"}])
    run.keep([{"name": "a", "samples_per_s": 2.0}, {"name": "b", "why": "ValueError: x"}])
    figures = json.loads(run.file.read_text())
    (tmp_path / "log").write_text("one\ntwo\n")
    failed = gpu._judge(figures, "done", tmp_path / "log")
    assert failed["state"] == "done, with failures"
    assert failed["tail"] == ["one", "two"]
    assert "| b |  | ValueError: x |" in "\n".join(report.table(failed["rows"]))
    quiet = gpu._judge({"rows": [{"name": "b", "why": "unsupported: no"}]}, "done", run.file)
    assert quiet["state"] == "done"
    assert quiet["left_out"] == ["b: unsupported: no"]


def test_hanging_part_is_ended_after_its_time_limit(tmp_path):
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    environment = {"PATH": "", "PYTHONPATH": str(tmp_path)}
    assert gpu._run_module(["hangs"], environment, tmp_path / "log", 0.2) == "ended after 0 s"
    assert gpu._run_module(["fails"], environment, None, 60) == "failed: exit status 3"


def test_overlap_is_the_time_of_copies_during_steps():
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


def test_headlines_are_one_line_each_and_name_missing_parts():
    rows_of = {"hidden": HIDDEN, "bandwidth": BANDWIDTH, "stall": STALL}
    assert report.headlines({name: {"rows": rows} for name, rows in rows_of.items()}) == [
        "share of the copy hidden behind the step: 91.4 % (ring)",
        "host-to-device bandwidth, of the pinned copy's 50.0 GB/s: 16 % (workers, the best), "
        "4 % (naive)",
        "stall fraction of resnet18 at bf16: 2 % (device resident, the best), 87 % (naive)",
    ]
    assert all(line.endswith("not measured") for line in report.headlines({}))
    assert len(report.headlines({"bandwidth": {"rows": BANDWIDTH[:2]}})) == 3


def test_pytest_part_reports_skipped_and_omitted_tests():
    outcomes = pytest_part.Outcomes()
    lines = [
        "collected 90 items / 87 deselected / 3 selected\n",
        "tests/test_a.py::test_one[x-y] PASSED        [ 33%]\n",
        "tests/test_a.py::test_two SKIPPED (no GPU)    [ 66%]\n",
        "something else\n",
    ]
    assert [outcomes.read(line) for line in lines] == [True, True, True, False]
    assert outcomes.rows == [
        {"name": "test_a.py::test_one[x-y]", "outcome": "passed"},
        {"name": "test_a.py::test_two", "outcome": "skipped"},
    ]
    assert outcomes.omissions() == ["1 of 3 tests: no time was left"]
    outcomes.read("tests/test_a.py::test_three FAILED        [100%]\n")
    outcomes.read("SKIPPED [1] tests/test_a.py:3: no GPU\n")
    outcomes.waiting = ["test_b.py"]
    assert outcomes.omissions() == [
        "SKIPPED [1] tests/test_a.py:3: no GPU",
        "test_b.py: no time was left",
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("passes_first", [False, True])
def test_time_budget_runs_trials_and_passes_in_the_given_order(outputs, passes_first):
    overrides = ("dataset=mydataset", "dataset.count=37", "dataset.shape=[4]", "epochs=1")
    overrides = (*overrides, "min_window_s=0")
    updates = []
    named_jobs = {
        name: compose_job(*overrides, "benchmark=training", "loader=np_memmap", f"device={device}")
        for name, device in {"a": "cpu", "no": "cuda:99"}.items()
    }
    measure_in_time(named_jobs, 600.0, updates.append, passes_first)
    assert updates[0] == [
        {"name": name, "why": "left out: no time was left"} for name in named_jobs
    ]
    assert ("stall_fraction" in updates[1][0]) == passes_first
    assert ("samples_per_s" in updates[1][0]) != passes_first
    row, unsupported = updates[-1]
    assert row["trials"] == 5
    assert 0 <= row["stall_fraction"] <= 1
    assert "why" not in row
    assert updates[1][0].get("trials") == (0 if passes_first else 1)
    assert unsupported["why"].startswith("unsupported: device=cuda:99")
    no_time_updates: list = []
    measure_in_time(named_jobs, 0.0, no_time_updates.append, passes_first)
    assert no_time_updates == updates[:1]


def test_executions_are_compared_with_their_eager_step():
    rows = [
        {"name": "toynet, training, eager", "samples_per_s": 2.0, "times_the_first": 1.0},
        {"name": "resnet18, training, eager", "why": "left out: no time was left"},
        {"name": "toynet, training, compiled", "samples_per_s": 3.0, "times_the_first": 1.5},
        {"name": "resnet18, training, compiled", "samples_per_s": 3.0, "times_the_first": 1.5},
    ]
    compared = parts.relate_to_eager(rows)
    names = ["resnet18, training, eager", "resnet18, training, compiled"]
    assert [row["name"] for row in compared] == [
        *names,
        *(name.replace("resnet18", "toynet") for name in names),
    ]
    assert [row.get("times_eager") for row in compared] == [None, None, 1.0, 1.5]
    assert not any("times_the_first" in row for row in compared)


def test_row_values_are_flattened_to_plain_json():
    flat = parts.flatten({"a": float("nan"), "b": (1.0, 2.0), "c": None, "d": "x"})
    assert flat == {"a": "nan", "b_low": 1.0, "b_high": 2.0, "c": None, "d": "x"}
    json.dumps(flat, allow_nan=False)
