"""The command line as a person uses it: real processes, real files, MLflow's own client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from options import CONF, MYDATASET, options

from fastloop.result import load, metrics

pytestmark = pytest.mark.slow
SMALL = ("epochs=2", "trials=2", *MYDATASET)


def fastloop(*arguments: str, cwd: Path, module: str = "fastloop.run", **environment: str):
    """The finished process of `python -m fastloop.run …` in that folder."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def results(cwd: Path) -> list:
    return [load(path.parent) for path in sorted(cwd.glob("outputs/20*/*/*/result.json"))]


def test_the_users_line_makes_one_run_of_twenty_trials(tmp_path):
    done = fastloop(
        *["loader=np_memmap", "dataset=mydataset", "-m", "trials=20"],
        *MYDATASET[1:],
        "epochs=1",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    assert len(result.trials) == 20
    assert result.name == "np_memmap mydataset"
    assert (result.status, result.status_reason) == ("FINISHED", "")
    assert "compareRunsMode=CHART" in done.stdout
    assert "np_memmap" in done.stdout


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of every loader on one dataset, logged to MLflow: (folder, finished process)."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder, fastloop("-m", "loader=glob(*)", "num_workers=0,1", *SMALL, cwd=folder)


def test_a_sweep_runs_every_combination_in_rounds(sweep):
    folder, done = sweep
    assert done.returncode == 0, done.stderr
    found = results(folder)
    assert len(found) == 2 * len(options("loader"))
    assert {result.status for result in found} == {"FINISHED"}
    assert {len(result.trials) for result in found} == {2}
    names = {result.name for result in found}
    assert "raw mydataset num_workers=1" in names
    for result in found:
        assert result.rounds == found[0].rounds
        assert [set(one) for one in result.rounds] == [names, names]
    assert found[0].rounds[0][0] != found[0].rounds[1][0]
    starts = [(t.started_ms, t.number) for result in found for t in result.trials]
    assert [number for _, number in sorted(starts)] == [0] * len(found) + [1] * len(found)


def test_the_terminal_fits_80_columns_but_for_paths_and_the_link(sweep):
    _, done = sweep
    lines = [
        one
        for one in done.stdout.splitlines()
        if not one.startswith(("files: ", "charts: ", "ui: "))
    ]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert all(any(loader in line for line in lines) for loader in options("loader"))


def test_mlflow_has_one_flat_run_a_job_with_the_contracts_names(sweep):
    from mlflow.tracking import MlflowClient

    folder, _ = sweep
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/outputs/mlflow.db")
    experiment = client.get_experiment_by_name("fastloop")
    found = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    for result in results(folder):
        run = found.pop(result.name)
        assert run.info.status == "FINISHED"
        assert run.data.metrics == pytest.approx(
            metrics(result)
            | {
                f"trials/{name}_seconds": one.seconds
                for name, one in result.trials[-1].benchmarks.items()
            }
        )
        names = {
            "seconds_mean",
            "seconds_std",
            "seconds_median",
            "samples_per_s",
            "bytes_per_s",
            "limit_fraction",
            "first_batch_s",
            "wait_p50_ms",
            "wait_p95_ms",
            "wait_p99_ms",
            "cpu_cores",
            "peak_pss_mib",
        }
        wanted = {
            f"{benchmark}/{name}" for benchmark in ("traversal", "training") for name in names
        }
        wanted |= {"training/loss_first", "training/loss_last", "training/stall_fraction"}
        wanted |= {"prepare/seconds", "prepare/disk_mib"}
        assert wanted <= run.data.metrics.keys()
        assert {
            "sweep",
            "config_hash",
            "git_commit",
            "host",
            "device",
            "mlflow.runColor",
        } <= run.data.tags.keys()
        assert run.data.params["loader"] == result.loader
        assert run.data.params["dataset.count"] == "203"
        assert {"placement", "order", "model", "world_size", "batch_size"} <= run.data.params.keys()
        history = client.get_metric_history(run.info.run_id, "trials/training_seconds")
        assert [point.step for point in history] == [0, 1]
        assert {file.path for file in client.list_artifacts(run.info.run_id)} >= {
            "config.yaml",
            "result.json",
        }
    assert found == {}


def test_a_loader_has_one_colour_in_mlflow(sweep):
    found = results(sweep[0])
    colours = {result.loader: result.tags["mlflow.runColor"] for result in found}
    assert len(set(colours.values())) == len(options("loader"))
    assert all(result.tags["mlflow.runColor"] == colours[result.loader] for result in found)


def test_every_figure_is_recomputed_from_the_raw_values_in_the_file(sweep):
    path = sorted(sweep[0].glob("outputs/20*/*/*/result.json"))[0]
    raw = json.loads(path.read_text())
    seconds = [
        (t["benchmarks"]["traversal"]["stop_ns"] - t["benchmarks"]["traversal"]["start_ns"]) / 1e9
        for t in raw["trials"]
    ]
    assert metrics(load(path.parent))["traversal/seconds_mean"] == pytest.approx(sum(seconds) / 2)


def test_a_job_alone_with_its_defaults(tmp_path):
    done = fastloop("trials=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [result.name for result in results(tmp_path)] == ["raw digits"]
    assert "raw" in done.stdout


def test_choices_of_two_groups_multiply_and_each_dataset_has_a_table(tmp_path):
    done = fastloop(
        "-m",
        "loader=raw,preload",
        "dataset=digits,mydataset",
        "trials=1",
        "epochs=1",
        "benchmark=traversal",
        "tracker=none",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert {result.name for result in results(tmp_path)} == {
        f"{loader} {dataset}"
        for loader in ("raw", "preload")
        for dataset in ("digits", "mydataset")
    }
    assert done.stdout.count("samples, batch_size") == 2


def test_without_a_tracker_mlflow_is_not_imported(tmp_path):
    program = (
        "import sys; sys.argv[1:] = sys.argv[1:]; from fastloop.run import main\n"
        "try: main()\nfinally: print('mlflow' in sys.modules)"
    )
    command = [
        sys.executable,
        "-c",
        program,
        "tracker=none",
        "trials=1",
        "isolation=inline",
        *MYDATASET,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert results(tmp_path)[0].status == "FINISHED"
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


@pytest.mark.parametrize("isolation", ["spawn", "inline"])
def test_other_isolations(tmp_path, isolation):
    done = fastloop(f"isolation={isolation}", "tracker=none", *SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path)[0].trials) == 2


def test_unsupported_alone_is_status_1_and_beside_others_a_row(tmp_path):
    import torch

    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    alone = fastloop("pin_memory=true", "tracker=none", *SMALL, cwd=tmp_path)
    assert alone.returncode == 1
    assert alone.stderr.startswith("unsupported: pin_memory=true")
    assert alone.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    beside = fastloop("-m", "device=cpu,cuda", "tracker=none", *SMALL, cwd=tmp_path)
    assert beside.returncode == 0
    assert "unsupported: device=cuda" in beside.stdout
    assert sorted(result.status for result in results(tmp_path)) == ["FAILED", "FINISHED"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("loader=np_mmap",), "Available options in 'loader'"),
        (("trails=3",), "trails"),
        (("trials=abc",), "trials=abc"),
        (("trials=0",), "trials=0"),
        (("epochs=1.5",), "epochs=1.5"),
        (("pin_memory=1",), "pin_memory=1"),
        (("+loader.foo=1",), "loader.foo"),
        (("+foo=1",), "foo"),
        (("device=toaster",), "device=toaster"),
        (("prefetch_factor=2",), "num_workers is 0"),
        (("loader=np_memmap,raw",), "--multirun"),
        (("-m", "trials=1,-1"), "trials=-1"),
        (("dataset=mydataset", "dataset.shape=[0]"), "dataset.shape"),
        (("isolation=thread",), "isolation=thread"),
    ],
)
def test_a_wrong_value_is_one_line_and_nothing_is_written(tmp_path, wrong, said):
    done = fastloop(*wrong, cwd=tmp_path)
    assert done.returncode != 0
    assert said in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_config_and_completion(tmp_path):
    assert "batch_size: 64" in fastloop("--cfg", "job", cwd=tmp_path).stdout
    helped = fastloop("--help", cwd=tmp_path).stdout
    assert all(
        option in helped
        for group in CONF.iterdir()
        if group.is_dir()
        for option in options(group.name)
    )
    settings = re.findall(r"^(\w+): +\S+ *(# .+)?$", (CONF / "config.yaml").read_text(), re.M)
    assert len(settings) >= 15
    assert all(f"{name}: " in helped and meaning in helped for name, meaning in settings)
    assert max(map(len, helped.splitlines())) <= 100
    completed = fastloop(
        "-sc",
        "query=bash",
        cwd=tmp_path,
        COMP_LINE="fastloop -m loader=np_",
        COMP_POINT="22",
        COMP_CWORD="2",
    )
    assert completed.stdout.split() == ["loader=np_memmap"], completed.stderr
    assert list(tmp_path.iterdir()) == []


def test_config_alone_imports_neither_torch_nor_mlflow(tmp_path):
    program = (
        "import sys; from fastloop.run import main\n"
        "try: main()\nfinally: print(sorted({'torch', 'mlflow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_prepare_writes_every_store_ahead(tmp_path):
    done = fastloop(*MYDATASET, cwd=tmp_path, module="fastloop.prepare")
    assert done.returncode == 0, done.stderr
    stores = {path.suffix for path in (tmp_path / "outputs" / "stores").iterdir() if path.is_dir()}
    assert stores == {".reference", ".npy", ".tensordict"}
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["data", "stores"]
    again = fastloop(*MYDATASET, "loader=np_memmap", cwd=tmp_path, module="fastloop.prepare")
    assert again.stdout.count("samples") == 1


def test_the_console_script_is_the_same_command(tmp_path):
    script = Path(sys.executable).parent / "fastloop"
    done = subprocess.run(
        [script, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == fastloop("--cfg", "job", cwd=tmp_path).stdout


def test_fashion_mnist_tells_its_repetition_in_the_table(tmp_path, fashion_root):
    done = fastloop(
        "dataset=fashion_mnist",
        f"dataset.root={fashion_root}",
        "dataset.repeat=2",
        "loader=raw",
        "trials=1",
        "epochs=1",
        "tracker=none",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "fashion_mnist (real images x 2): 1,600 samples" in done.stdout


def test_benchmarks_may_vary_and_different_work_is_not_ranked_together(tmp_path):
    done = fastloop(
        "-m",
        "benchmark=traversal,training",
        "dataset.count=100,203",
        "tracker=none",
        "trials=1",
        "epochs=1",
        "dataset=mydataset",
        "dataset.shape=[5,3]",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mydataset: ") == 2
    assert "100 samples" in done.stdout
    assert "203 samples" in done.stdout


def test_the_launcher_cant_be_swept(tmp_path):
    done = fastloop("-m", "isolation=forkserver,inline", cwd=tmp_path)
    assert done.returncode == 1
    assert "can't be swept" in done.stderr
    assert list(tmp_path.iterdir()) == []


LIAR = """
from contextlib import contextmanager
from fastloop.loaders.np_memmap import NpMemmap

class Liar(NpMemmap):
    @contextmanager
    def open(self, prepared, plan):
        with super().open(prepared, plan) as epochs:
            asked = []
            def lying(epoch):
                asked.append(epoch)
                for source, targets in epochs(epoch):
                    yield source, targets if len(asked) == 1 else (targets + 1) % 10
            yield lying
"""


def test_a_loader_that_is_honest_only_in_its_first_epoch_is_invalid_and_not_ranked(tmp_path):
    (tmp_path / "liar.py").write_text(LIAR)
    overrides = ["loader=np_memmap,raw", "tracker=none", *SMALL]
    honest = fastloop("-m", *overrides, cwd=tmp_path)
    assert honest.returncode == 0, honest.stderr
    lying = fastloop(
        "loader=np_memmap", "loader._target_=liar.Liar", "tracker=none", *SMALL, cwd=tmp_path
    )
    assert lying.returncode == 1
    result = max(results(tmp_path), key=lambda one: one.tags["sweep"])
    assert result.status == "FAILED"
    assert result.status_reason == "invalid: the samples or their labels are not the dataset's"
    assert result.trials == []
    assert "rank" not in lying.stdout


def test_a_lost_tracker_loses_no_measurement(tmp_path):
    done = fastloop(
        "-m",
        "loader=raw,preload",
        *SMALL,
        cwd=tmp_path,
        MLFLOW_TRACKING_URI="http://127.0.0.1:9",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    assert [result.status for result in results(tmp_path)] == ["FINISHED", "FINISHED"]
    assert "not in the tracker" in done.stderr
    assert "preload" in done.stdout


def test_what_a_lost_server_did_not_get_is_recorded_later(tmp_path):
    from mlflow.tracking import MlflowClient

    lost = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    fastloop(*SMALL, cwd=tmp_path, **lost)
    (folder,) = tmp_path.glob("outputs/20*/*")
    for said in ("raw mydataset, 2 trials", "is in the tracker already"):
        done = fastloop(str(folder), cwd=tmp_path, module="fastloop.record")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/outputs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("fastloop").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["traversal/seconds_mean"] > 0


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_command_ends_finished_trials_are_kept_and_no_run_stays_open(tmp_path, sign):
    from mlflow.tracking import MlflowClient

    command = psutil.Popen(
        [sys.executable, "-m", "fastloop.run", *MYDATASET, "trials=1000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(result.trials for result in results(tmp_path)):
        assert command.poll() is None
        time.sleep(0.2)
    processes = command.children(recursive=True)
    command.send_signal(sign)
    said = command.communicate()[1]
    assert psutil.wait_procs(processes, timeout=30)[1] == []
    assert "Traceback" not in said
    (result,) = results(tmp_path)
    assert result.trials
    if sign != signal.SIGKILL:
        assert command.returncode == 128 + sign
        assert result.status == "KILLED"
    assert fastloop("trials=1", "epochs=1", cwd=tmp_path).returncode == 0
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/outputs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("fastloop").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FINISHED", "KILLED"]


def test_a_diverging_loss_is_kept(tmp_path):
    done = fastloop("dataset=digits", "learning_rate=1e9", "trials=1", "tracker=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    assert not result.trials[0].benchmarks["training"].losses[-1] < 1e9
