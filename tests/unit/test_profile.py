"""profile=true: a trace for Perfetto and a table, next to the result and in MLflow."""

from __future__ import annotations

import gzip
import json
import math
import re

import pytest
from commands import SMALL, run_fastloop, runs
from my_code import BusySamples
from options import compose_job

from fastloop.data.prepare_dataset import prepare
from fastloop.sweep.caveats import option_caveats
from fastloop.trial.profiling import PROFILED_STEPS, profile_paths, run_profiling

TICKS_S = 0.1
"""Tolerance for the CPU time of two workers, which the system reports in ticks of 10 ms."""
CLOCKS_US = 20_000
"""By how much two clocks that are read one after the other may differ on a busy machine."""


def trace_of(path) -> list[dict]:
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = gzip.decompress(path.read_bytes()).decode()
    return json.loads(text, parse_constant=refuse)["traceEvents"]


def check_lanes(complete: list[dict], has_worker: bool) -> None:
    """The lanes of the loop are on the profile's time axis, those of its workers next to it."""
    lanes = [event for event in complete if event["cat"] == "loading"]
    loop = {event["pid"] for event in lanes if event["name"] == "wait"}
    decoding = {event["pid"] for event in lanes if event["name"] == "decode"}
    assert (len(loop), len(decoding - loop)) == (1, int(has_worker))
    steps = [[e for e in lanes if e["name"] == "step"]]
    steps.append([e for e in complete if e["name"] == "step" and e["cat"] == "user_annotation"])
    outer, inner = (sorted((e["ts"], e["ts"] + e["dur"]) for e in each) for each in steps)
    assert len(inner) == PROFILED_STEPS
    for (begin, end), (start, stop) in zip(outer, inner, strict=True):
        assert begin - CLOCKS_US <= start <= stop <= end + CLOCKS_US


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ("benchmark=training", {"wait", "place", "step", "aten::addmm"}),
        ("benchmark=inference execution=eager", {"wait", "place", "step", "aten::addmm"}),
        ("benchmark=traversal num_workers=1 loader=raw", {"wait", "place"}),
    ],
)
def test_profile_trace_names_waits_places_steps_and_operations(
    prepared_job, tmp_path, overrides, wanted
):
    job, prepared = prepared_job(*overrides.split(), "batch_size=8")
    (name,) = job.benchmark
    run_profiling(job, prepared, name, tmp_path)
    trace, table = profile_paths(tmp_path, name)
    assert sorted(tmp_path.iterdir()) == sorted([trace, table])
    events = trace_of(trace)
    complete = [event for event in events if event.get("ph") == "X"]
    assert wanted <= {event["name"] for event in complete}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in complete)
    check_lanes(complete, has_worker="num_workers" in overrides)
    text = table.read_text()
    assert text.startswith(f"{name}: {PROFILED_STEPS} steps under torch.profiler")
    assert all(span in text for span in wanted - {"aten::addmm"})


@pytest.mark.heavy
@pytest.mark.parametrize("num_workers", [0, 2])
def test_profile_table_reports_cpu_time_of_the_decoding_process(outputs, tmp_path, num_workers):
    overrides = (
        "dataset._target_=my_code.BusySamples",
        "loader=raw",
        "batch_size=8",
        "benchmark=traversal",
    )
    job = compose_job(*overrides, f"num_workers={num_workers}", "epochs=1")
    run_profiling(job, prepare(job.dataset, job.loader.store), "traversal", tmp_path)
    text = profile_paths(tmp_path, "traversal")[1].read_text()
    match = re.search(r"CPU time of this process (\S+) s, of its workers (\S+) s; ", text)
    assert match is not None
    process_s, workers_s = map(float, match.groups())
    wanted_s = BusySamples.count * BusySamples.CPU_S
    assert (workers_s if num_workers else process_s) >= wanted_s - TICKS_S
    assert num_workers or workers_s < TICKS_S


def test_profile_trace_includes_the_prefetching_thread(prepared_job, tmp_path):
    ahead = ("device_prefetch=2", "device_prefetch_by=thread", "loader=raw")
    job, prepared = prepared_job(*ahead, "benchmark=training", "batch_size=8")
    run_profiling(job, prepared, "training", tmp_path)
    complete = [
        event
        for event in trace_of(profile_paths(tmp_path, "training")[0])
        if event.get("ph") == "X"
    ]
    theirs = [event for event in complete if event["cat"] != "loading"]
    (step_thread,) = {event["tid"] for event in theirs if event["name"] == "step"}
    loading_threads = {event["tid"] for event in complete if event["name"] == "aten::stack"}
    assert loading_threads
    assert step_thread not in loading_threads


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_command_stores_profiles_with_the_result_and_in_mlflow(tmp_path):
    from mlflow.tracking import MlflowClient

    benchmarks = "benchmark=[traversal,training,inference]"
    process = run_fastloop(*SMALL, benchmarks, "profile=true", "report=true", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert max(map(len, process.stdout.partition("\nfiles:")[0].splitlines())) <= 80
    (trace,) = tmp_path.glob("outputs/20*/**/profile-training.json.gz")
    assert trace_of(trace)
    (run,) = runs(tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/outputs/mlflow.db")
    paths = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    for name in ("traversal", "training", "inference"):
        assert {f"profile-{name}.json.gz", f"profile-{name}.txt"} <= paths
        assert f"{name}/samples_per_s" in run.data.metrics
    assert {"training/stall_fraction", "inference/stall_fraction"} <= run.data.metrics.keys()
    assert "inference/loss_first" not in run.data.metrics
    pictures = {
        artifact.path.rpartition("/")[2]
        for artifact in client.list_artifacts(run.info.run_id, "report")
    }
    assert {"inference-seconds.png", "inference-limit.png"} <= pictures


@pytest.mark.parametrize(
    ("benchmark", "shape", "model", "has_caveat"),
    [
        ("training", (3, 256, 256), "toynet", True),
        ("inference", (3, 256, 256), "toynet", True),
        ("traversal", (3, 256, 256), "toynet", False),
        ("training", (28, 28), "toynet", False),
        ("training", (3, 256, 256), "resnet18", False),
    ],
)
def test_caveat_names_a_toynet_that_is_mostly_its_first_layer(benchmark, shape, model, has_caveat):
    job = compose_job(f"benchmark={benchmark}", f"model={model}")
    messages = option_caveats(job, 4 * math.prod(shape) + 8, 1)
    message = "model=toynet: 101 million parameters in its first layer, as samples are large; "
    assert messages == ([f"{message}see model=resnet18"] if has_caveat else [])
