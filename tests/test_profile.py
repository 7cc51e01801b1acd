"""profile=true: a trace that opens in Perfetto, and a table, beside the result and in MLflow."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from brought import Busy
from commands import SMALL, fastloop, runs
from options import compose_job
from test_window import result_of

from fastloop.caveats import caveats
from fastloop.prepared import prepare
from fastloop.profiling import PROFILED_STEPS, profile_paths
from fastloop.trial import run_profiled

TICKS_S = 0.1
"""More than user and system time of two workers lose by being told in ticks of 10 ms."""


def trace_of(path) -> list[dict]:
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    text = gzip.decompress(path.read_bytes()).decode()
    return json.loads(text, parse_constant=refuse)["traceEvents"]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ("benchmark=training", {"wait", "place", "step", "aten::addmm"}),
        ("benchmark=inference execution=eager", {"wait", "place", "step", "aten::addmm"}),
        ("benchmark=traversal num_workers=1 loader=raw", {"wait", "place"}),
    ],
)
def test_the_trace_names_waits_places_steps_and_operations(
    prepared_job, tmp_path, overrides, wanted
):
    job, prepared = prepared_job(*overrides.split(), "batch_size=8")
    (name,) = job.benchmark
    run_profiled(job, prepared, name, tmp_path)
    trace, table = profile_paths(tmp_path, name)
    assert sorted(tmp_path.iterdir()) == sorted([trace, table])
    events = trace_of(trace)
    complete = [one for one in events if one.get("ph") == "X"]
    assert wanted <= {one["name"] for one in complete}
    assert all(one["dur"] >= 0 and one["ts"] >= 0 for one in complete)
    told = table.read_text()
    assert told.startswith(f"{name}: {PROFILED_STEPS} steps under torch.profiler")
    assert all(one in told for one in wanted - {"aten::addmm"})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_table_tells_the_cpu_time_of_the_process_that_decodes(outputs, tmp_path, num_workers):
    names = ("dataset._target_=brought.Busy", "loader=raw", "batch_size=8", "benchmark=traversal")
    job = compose_job(*names, f"num_workers={num_workers}", "epochs=1")
    run_profiled(job, prepare(job.dataset, job.loader.store), "traversal", tmp_path)
    told = profile_paths(tmp_path, "traversal")[1].read_text()
    found = re.search(r"CPU time of this process (\S+) s, of its workers (\S+) s; ", told)
    assert found is not None
    own, workers = map(float, found.groups())
    burnt = Busy.count * Busy.CPU_S
    assert (workers if num_workers else own) >= burnt - TICKS_S
    assert num_workers or workers < TICKS_S


def test_the_trace_has_the_operations_of_a_thread_that_loads_ahead(prepared_job, tmp_path):
    ahead = ("device_prefetch=2", "device_prefetch_by=thread", "loader=raw")
    job, prepared = prepared_job(*ahead, "benchmark=training", "batch_size=8")
    run_profiled(job, prepared, "training", tmp_path)
    complete = [
        one for one in trace_of(profile_paths(tmp_path, "training")[0]) if one.get("ph") == "X"
    ]
    (steps,) = {one["tid"] for one in complete if one["name"] == "step"}
    loading = {one["tid"] for one in complete if one["name"] == "aten::stack"}
    assert loading
    assert steps not in loading


@pytest.mark.slow
def test_a_command_keeps_them_beside_the_result_and_in_mlflow(tmp_path):
    from mlflow.tracking import MlflowClient

    benchmarks = "benchmark=[traversal,training,inference]"
    done = fastloop(*SMALL, benchmarks, "profile=true", "report=true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.partition("\nfiles:")[0].splitlines())) <= 80
    (trace,) = tmp_path.glob("outputs/20*/**/profile-training.json.gz")
    assert trace_of(trace)
    (run,) = runs(tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/outputs/mlflow.db")
    kept = {one.path for one in client.list_artifacts(run.info.run_id)}
    for name in ("traversal", "training", "inference"):
        assert {f"profile-{name}.json.gz", f"profile-{name}.txt"} <= kept
        assert f"{name}/samples_per_s" in run.data.metrics
    assert {"training/stall_fraction", "inference/stall_fraction"} <= run.data.metrics.keys()
    assert "inference/loss_first" not in run.data.metrics
    pictures = {
        one.path.rpartition("/")[2] for one in client.list_artifacts(run.info.run_id, "report")
    }
    assert {"inference-seconds.png", "inference-limit.png"} <= pictures


def test_a_toynet_that_is_mostly_its_first_layer_is_told():
    known = result_of([1.0, 2.0], samples=10, limit=100.0)

    def told(benchmark, nbytes, model):
        from dataclasses import replace

        trials = [
            replace(one, benchmarks={benchmark: one.benchmarks["traversal"]})
            for one in known.trials
        ]
        params = {"model": model, "model.hidden": 512}
        return caveats(replace(known, trials=trials, params=params, sample_nbytes=nbytes), [])

    photo = 3 * 256 * 256 * 4 + 8
    said = "model=toynet: 101 million parameters in its first layer, as samples are large; "
    assert f"{said}see model=resnet18" in told("training", photo, "toynet")
    for other in (
        ("traversal", photo, "toynet"),
        ("training", 3136, "toynet"),
        ("training", photo, "resnet18"),
    ):
        assert not [one for one in told(*other) if "first layer" in one]
