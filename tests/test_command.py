"""The command line as a person uses it: real processes, real files, MLflow's own client."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import QUICK, SMALL, fastloop, results, runs, typed
from options import CONF, MYDATASET, options

from fastloop import catalogue
from fastloop.result import load, metrics

pytestmark = pytest.mark.slow


def test_the_users_line_makes_one_run_of_twenty_trials(tmp_path):
    done = typed(
        *["loader=np_memmap", "dataset=mydataset", "-m", "trials=20"],
        *MYDATASET[1:],
        "epochs=1",
        "benchmark=traversal",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    assert len(result.trials) == 20
    assert result.name == "np_memmap mydataset"
    assert (result.status, result.status_reason) == ("FINISHED", "")
    assert "compareRunsMode=CHART" in done.stdout
    assert "np_memmap" in done.stdout


LOADERS = ("raw", "preload", "tensorclass_memmap", "np_memmap", "index_loop")
"""Of each kind one; the last has no workers."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """A sweep of some loaders on one dataset, logged to MLflow: (folder, finished process)."""
    folder = tmp_path_factory.mktemp("sweep")
    loaders = f"loader={','.join(LOADERS)}"
    return folder, typed("-m", loaders, "num_workers=0,1", *SMALL, "report=true", cwd=folder)


def finished(folder):
    return [result for result in results(folder) if result.status == "FINISHED"]


def test_a_loader_without_a_setting_is_a_row_with_its_reason_among_the_others(sweep):
    folder, done = sweep
    assert done.returncode == 0, done.stderr
    assert len(results(folder)) == 2 * len(LOADERS)
    (refused,) = [result for result in results(folder) if result.status != "FINISHED"]
    said = "unsupported: num_workers=1: loader=index_loop has no such setting"
    assert (refused.name, refused.status_reason) == ("index_loop mydataset num_workers=1", said)
    assert refused.trials == []
    assert "num_workers=1: loader=index_loop has no such setting" in " ".join(done.stdout.split())


def test_a_sweep_runs_every_combination_in_rounds(sweep):
    found = finished(sweep[0])
    assert len(found) == 2 * len(LOADERS) - 1
    assert {len(result.trials) for result in found} == {2}
    names = {result.name for result in found}
    assert "raw mydataset num_workers=1" in names
    refused = {result.name for result in results(sweep[0])} - names  # as its first trial began
    for result in found:
        assert result.rounds == found[0].rounds
        assert [set(one) - refused for one in result.rounds] == [names, names]
    assert found[0].rounds[0][0] != found[0].rounds[1][0]
    starts = [(t.started_ms, t.number) for result in found for t in result.trials]
    assert [number for _, number in sorted(starts)] == [0] * len(found) + [1] * len(found)


def test_the_terminal_fits_80_columns_but_for_paths_and_the_link(sweep):
    _, done = sweep
    lines = [
        one
        for one in done.stdout.splitlines()
        if not one.startswith(("files: ", "report: ", "charts: ", "ui: "))
    ]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert all(any(loader in line for line in lines) for loader in LOADERS)


FIGURES = {
    *("seconds_mean", "seconds_std", "seconds_median", "samples_per_s", "bytes_per_s"),
    *("limit_fraction", "first_batch_s", "wait_p50_ms", "wait_p95_ms", "wait_p99_ms"),
    *("cpu_cores", "peak_pss_mib"),
}
CONTRACT = {f"{name}/{figure}" for name in ("traversal", "training") for figure in FIGURES} | {
    *("training/loss_first", "training/loss_last", "training/stall_fraction"),
    *("prepare/seconds", "prepare/disk_mib"),
}


def test_mlflow_has_one_flat_run_a_job_with_the_contracts_names(sweep):
    folder, _ = sweep
    found = {run.info.run_name: run for run in runs(folder)}
    assert found.keys() == {result.name for result in results(folder)}
    for result in finished(folder):
        run = found[result.name]
        assert run.info.status == "FINISHED"
        last = result.trials[-1].benchmarks
        trials = {f"trials/{name}_seconds": one.seconds for name, one in last.items()}
        assert run.data.metrics == pytest.approx(metrics(result) | trials)
        assert run.data.metrics.keys() >= CONTRACT
        tags = {"sweep", "config_hash", "git_commit", "host", "device", "mlflow.runColor"}
        assert run.data.tags.keys() >= tags
        assert run.data.params["loader"] == result.loader
        assert run.data.params["dataset.count"] == "203"
        assert run.data.params.keys() >= {"placement", "order", "model", "world_size", "batch_size"}


def test_mlflow_has_every_trial_as_a_step_and_the_files_as_artifacts(sweep):
    from mlflow.tracking import MlflowClient

    folder, _ = sweep
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/outputs/mlflow.db")
    names = [result.name for result in finished(folder)]
    for run in [one for one in runs(folder) if one.info.run_name in names]:
        history = client.get_metric_history(run.info.run_id, "trials/training_seconds")
        assert [point.step for point in history] == [0, 1]
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert files >= {"config.yaml", "result.json", "report"}
        assert "report/report.html" in {
            file.path for file in client.list_artifacts(run.info.run_id, "report")
        }


def test_a_loader_has_one_colour_in_mlflow(sweep):
    found = results(sweep[0])
    colours = {result.loader: result.tags["mlflow.runColor"] for result in found}
    assert len(set(colours.values())) == len(LOADERS)
    assert all(result.tags["mlflow.runColor"] == colours[result.loader] for result in found)


def test_every_figure_is_recomputed_from_the_raw_values_in_the_file(sweep):
    path = sorted(sweep[0].glob("outputs/20*/*/0/result.json"))[0]
    raw = json.loads(path.read_text())
    seconds = [
        (t["benchmarks"]["traversal"]["stop_ns"] - t["benchmarks"]["traversal"]["start_ns"]) / 1e9
        for t in raw["trials"]
    ]
    assert metrics(load(path.parent))["traversal/seconds_mean"] == pytest.approx(sum(seconds) / 2)


def test_a_job_alone_with_its_defaults(tmp_path, database):
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
        "report=false",
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
        "report=false",
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
    done = fastloop(f"isolation={isolation}", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path)[0].trials) == 1


def test_help_names_every_group_option_and_setting_in_80_columns(tmp_path):
    helped = typed("--help", cwd=tmp_path).stdout
    assert max(map(len, helped.splitlines())) <= 80
    for group in catalogue.groups():
        assert f"\n{group.name}" in helped
        for option in group.options:
            assert option.meaning, f"{group.name}/{option.name} does not say what it is"
            assert f"\n  {option.name} " in helped
            assert all(
                f" {group.path}.{one.name}={one.default}" in helped for one in option.settings
            )
    assert len(catalogue.settings()) >= 15
    assert all(f"\n  {one.name}={one.default} " in helped for one in catalogue.settings())
    said = [one for group in catalogue.groups() for o in group.options for one in o.settings]
    assert all(one.meaning for one in [*said, *catalogue.settings()])
    assert list(tmp_path.iterdir()) == []


def test_config_and_completion(tmp_path):
    assert "batch_size: 64" in typed("--cfg", "job", cwd=tmp_path).stdout
    environment = {"COMP_LINE": "fastloop -m loader=np_", "COMP_POINT": "22", "COMP_CWORD": "2"}
    completed = typed("-sc", "query=bash", cwd=tmp_path, **environment)
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


def store_of(loader: str) -> str:
    """Its name; empty for the loader that reads the dataset itself."""
    text = (CONF / "loader" / f"{loader}.yaml").read_text()
    return "".join(re.findall(r"/store@store: (\w+)", text))


def test_prepare_writes_every_store_ahead(tmp_path):
    done = typed(*MYDATASET, cwd=tmp_path, module="fastloop.prepare")
    assert done.returncode == 0, done.stderr
    folders = [path for path in (tmp_path / "outputs" / "stores").iterdir() if path.is_dir()]
    stores = {path.suffix.partition("-")[0] for path in folders}  # -<its settings>
    absent = {name for name in options("loader") if f"loader {name}: unsupported" in done.stderr}
    wanted = [store_of(name) for name in options("loader") if name not in absent]
    assert stores - {".reference"} == {f".{name}" for name in wanted if name}
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["data", "stores"]
    again = fastloop(*MYDATASET, "loader=np_memmap", cwd=tmp_path, module="fastloop.prepare")
    assert again.stdout.count("samples") == 1


def test_the_console_script_is_the_same_command(tmp_path):
    script = Path(sys.executable).parent / "fastloop"
    done = subprocess.run(
        [script, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == typed("--cfg", "job", cwd=tmp_path).stdout


def test_fashion_mnist_tells_its_repetition_in_the_table(tmp_path, fashion_root):
    done = fastloop(
        "dataset=fashion_mnist",
        f"dataset.root={fashion_root}",
        "dataset.repeat=2",
        "loader=raw",
        "trials=1",
        "epochs=1",
        "tracker=none",
        "report=false",
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
        "report=false",
        "trials=1",
        "epochs=1",
        "dataset=mydataset",
        "dataset.shape=[5,3]",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("samples, batch_size") == 2
    assert "100 samples" in done.stdout
    assert "203 samples" in done.stdout


MINE = """
import torch
from torch.utils.data import DataLoader, Dataset
from fastloop.torch_loader import torch_epochs
from fastloop.types import option

@option
class Mine:
    label = "mine"
    num_classes = 3
    uint8_scale = None

    def fetch(self):
        return "all of it"

    def open(self):
        return Plain()

class Plain(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 3

@option
class MyLoader:
    store = None

    def open(self, prepared, plan):
        return torch_epochs(prepared.dataset.open(), plan)

def make_loader(batch_size):
    return DataLoader(Plain(), batch_size, shuffle=True)

def generated():
    for batch in DataLoader(Plain(), 3):
        yield batch
"""


def test_a_folder_of_ones_own_holds_options_like_the_others(tmp_path):
    """`-cd`: a dataset and a loader by their Protocols, and a plain Dataset."""
    (tmp_path / "mine.py").write_text(MINE)
    wholes = {"dataset/mine": "Mine", "dataset/plain": "Plain", "loader/mine": "MyLoader"}
    for name, target in wholes.items():
        (tmp_path / "my_conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my_conf" / f"{name}.yaml").write_text(f"_target_: mine.{target}\n")
    sweep = ("-cd", "my_conf", "-m", "dataset=mine,plain", "loader=mine,np_memmap")
    done = fastloop(*sweep, "epochs=1", "trials=1", "tracker=none", "report=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = results(tmp_path)
    assert {result.status for result in found} == {"FINISHED"}
    datasets, loaders = ("mine", "plain"), ("mine", "np_memmap")
    assert {result.name for result in found} == {f"{a} {b}" for b in datasets for a in loaders}
    assert "mine: 30 samples" in done.stdout
    assert "Plain: 30 samples" in done.stdout


def test_loaders_of_ones_own_are_told_by_their_names_and_ranked_on_what_they_bring(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    targets = "loader._target_=mine.make_loader,mine.generated"
    quick = ("epochs=1", "trials=3", "tracker=none", "report=false", "benchmark=traversal")
    done = fastloop("-m", targets, *quick, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {"mine.make_loader own_data", "mine.generated own_data"}
    assert {result.name for result in results(tmp_path)} == names
    assert done.stdout.count("own data: 30 samples") == 1
    assert "mine.generated" in done.stdout
    assert "10 batches for 30 samples, of its own" in " ".join(done.stdout.split())
    sizes = {one.loader: one.params["batch_size"] for one in results(tmp_path)}
    assert sizes == {"mine.make_loader": 64, "mine.generated": "its own"}
    assert "batch_size" not in done.stdout  # as no size is that of both


def test_the_tracker_cant_be_swept(tmp_path):
    done = fastloop("-m", "tracker=none,mlflow", cwd=tmp_path)
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


def test_a_diverging_loss_is_kept(tmp_path):
    done = fastloop("dataset=digits", "learning_rate=1e9", "trials=1", "tracker=none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = results(tmp_path)
    assert not result.trials[0].benchmarks["training"].losses[-1] < 1e9
