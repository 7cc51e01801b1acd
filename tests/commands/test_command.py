"""The command line in real processes, with real files and MLflow's own client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zlib
from base64 import b64decode
from pathlib import Path

import pytest
from commands import QUICK, SMALL, results, run_fastloop, runs, spawn_fastloop
from options import MYDATASET, options, store_of

from fastloop.config import catalogue
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.result_io import load
from fastloop.core.tracked_metrics import metrics

pytestmark = pytest.mark.slow


@pytest.mark.heavy
def test_readme_command_creates_one_run_of_all_trials(tmp_path):
    process = spawn_fastloop(
        *["loader=np_memmap", "dataset=mydataset", "-m", "trials=2"],
        *MYDATASET[1:],
        "epochs=1",
        "benchmark=traversal",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    (result,) = results(tmp_path)
    assert len(result.trials) == 2
    assert result.name == "np_memmap mydataset"
    assert (result.status, result.status_reason) == ("FINISHED", "")
    assert "compareRunsMode=CHART" in process.stdout
    assert "np_memmap" in process.stdout


def shared_view(folder: Path, printed: str) -> dict:
    """What the printed link's view says, as MLflow's page reads it from the experiment's tag."""
    from mlflow.tracking import MlflowClient

    (key,) = re.findall(r"viewStateShareKey=(\w+)", printed)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'outputs' / 'mlflow.db'}")
    tags = client.get_experiment_by_name("fastloop").tags
    kind, _, packed = tags[f"mlflow.sharedViewState.{key}"].partition(";")
    assert kind == "deflate"
    return json.loads(zlib.decompress(b64decode(packed)))


LOADERS = ("raw", "index_loop")
"""A loader of samples, and one of rows without workers."""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, empty_database):
    """A sweep of some loaders on one dataset, logged to MLflow: (folder, finished process)."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    loaders = f"loader={','.join(LOADERS)}"
    return folder, run_fastloop("-m", loaders, "num_workers=0,1", *SMALL, "report=true", cwd=folder)


def test_link_shows_finished_runs_the_fastest_first(sweep):
    from mlflow.tracking import MlflowClient

    folder, process = sweep
    view = shared_view(folder, process.stdout)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'outputs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fastloop").experiment_id
    order = f"{view['orderByKey']} {'ASC' if view['orderByAsc'] else 'DESC'}"
    shown = client.search_runs([experiment], view["searchFilter"], order_by=[order])
    finished = {result.run_id for result in finished_results(folder)}
    assert {run.info.run_id for run in shown} == finished
    assert len(finished) < len(results(folder))  # a job of this sweep is unsupported
    metric = view["orderByKey"].removeprefix("metrics.").strip("`")
    seconds = [run.data.metrics[metric] for run in shown]
    assert seconds == sorted(seconds)
    charted = [chart["metricKey"] for chart in view["compareRunCharts"]]
    assert charted[0] == metric
    assert charted[1:] == [
        "traversal/samples_per_s",
        "training/wait_p95_ms",
        "training/peak_pss_mib",
    ]
    assert {each["columns"] for each in view["compareRunSections"] if each["display"]} == {1}
    assert {*charted} <= {name for run in shown for name in run.data.metrics}
    opened = [each["uuid"] for each in view["compareRunSections"] if each["display"]]
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {*opened}


def finished_results(folder):
    return [result for result in results(folder) if result.status == "FINISHED"]


def test_unsupported_setting_of_a_loader_is_a_row_with_its_reason(sweep):
    folder, process = sweep
    assert process.returncode == 0, process.stderr
    assert len(results(folder)) == 2 * len(LOADERS)
    (unsupported,) = [result for result in results(folder) if result.status != "FINISHED"]
    reason = "unsupported: num_workers=1: loader=index_loop has no such setting"
    assert (unsupported.name, unsupported.status_reason) == (
        "index_loop mydataset num_workers=1",
        reason,
    )
    assert unsupported.trials == []
    assert "num_workers=1: loader=index_loop has no such setting" in " ".join(
        process.stdout.split()
    )


def test_sweep_runs_every_combination_in_rounds(sweep):
    completed = finished_results(sweep[0])
    assert len(completed) == 2 * len(LOADERS) - 1
    assert {len(result.trials) for result in completed} == {2}
    names = {result.name for result in completed}
    assert "raw mydataset num_workers=1" in names
    unsupported = {
        result.name for result in results(sweep[0])
    } - names  # in the rounds until its first trial
    for result in completed:
        assert result.rounds == completed[0].rounds
        assert [set(names_of_round) - unsupported for names_of_round in result.rounds] == [
            names,
            names,
        ]
    assert completed[0].rounds[0][0] != completed[0].rounds[1][0]
    starts = [(trial.started_ms, trial.number) for result in completed for trial in result.trials]
    assert [number for _, number in sorted(starts)] == [0] * len(completed) + [1] * len(completed)


def test_terminal_output_fits_80_columns_except_paths_and_link(sweep):
    _, process = sweep
    lines = [
        line
        for line in process.stdout.splitlines()
        if not line.startswith(("files: ", "report: ", "charts: ", "ui: "))
    ]
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in process.stdout
    assert all(any(loader in line for line in lines) for loader in LOADERS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports it")
def test_every_trial_records_the_load_and_the_answer_begins_with_it(sweep):
    folder, process = sweep
    loads = [trial.load for result in results(folder) for trial in result.trials]
    assert all(loads)
    known = [load for load in loads if load.seconds >= LEAST_SECONDS]
    assert all(load.other_cores is not None for load in known)
    assert process.stdout.startswith("The machine was ")
    (report,) = folder.glob("outputs/20*/*/report/report.html")
    sentence = " ".join(process.stdout.split("\n\n")[0].split())
    assert sentence in report.read_text()


FIGURES = {
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
    "peak_pss_mib",  # cpu_cores is absent where an epoch is too short for the clock of CPU time
}
CONTRACT = {f"{name}/{figure}" for name in ("traversal", "training") for figure in FIGURES} | {
    "training/loss_first",
    "training/loss_last",
    "training/stall_fraction",
}
OF_STORES = {"prepare/seconds", "prepare/disk_mib"}


def test_mlflow_has_one_run_per_job_with_the_contract_names(sweep):
    folder, _ = sweep
    runs_by_name = {run.info.run_name: run for run in runs(folder)}
    assert runs_by_name.keys() == {result.name for result in results(folder)}
    for result in finished_results(folder):
        run = runs_by_name[result.name]
        assert run.info.status == "FINISHED"
        last = result.trials[-1].benchmarks
        trials = {f"trials/{name}_seconds": window.seconds for name, window in last.items()}
        assert run.data.metrics == pytest.approx(metrics(result) | trials)
        assert run.data.metrics.keys() >= CONTRACT
        assert (run.data.metrics.keys() & OF_STORES == OF_STORES) == (result.disk_mib > 0)
        assert (run.data.metrics.keys() & OF_STORES == set()) == (result.loader == "raw")
        tags = {"sweep", "config_hash", "git_commit", "host", "device", "mlflow.runColor"}
        assert run.data.tags.keys() >= tags
        assert run.data.params["loader"] == result.loader
        assert run.data.params["dataset.count"] == "203"
        assert run.data.params.keys() >= {"placement", "order", "model", "world_size", "batch_size"}


def test_mlflow_has_trials_as_steps_and_files_as_artifacts(sweep):
    from mlflow.tracking import MlflowClient

    folder, _ = sweep
    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/outputs/mlflow.db")
    names = [result.name for result in finished_results(folder)]
    for run in (run for run in runs(folder) if run.info.run_name in names):
        history = client.get_metric_history(run.info.run_id, "trials/training_seconds")
        assert [point.step for point in history] == [0, 1]
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert files >= {"config.yaml", "result.json", "report"}
        assert "report/report.html" in {
            file.path for file in client.list_artifacts(run.info.run_id, "report")
        }


def test_jobs_that_share_a_loader_have_colours_of_their_own_in_mlflow(sweep):
    sweep_results = results(sweep[0])
    colours = {result.tags["mlflow.runColor"] for result in sweep_results}
    assert len(colours) == len(sweep_results) == 2 * len(LOADERS)


def test_metrics_are_computed_from_the_raw_values_in_the_file(sweep):
    path = sorted(sweep[0].glob("outputs/20*/*/0/result.json"))[0]
    raw = json.loads(path.read_text())
    seconds = [
        (window["stop_ns"] - window["start_ns"]) / 1e9
        for window in (trial["benchmarks"]["traversal"] for trial in raw["trials"])
    ]
    assert metrics(load(path.parent))["traversal/seconds_mean"] == pytest.approx(sum(seconds) / 2)


@pytest.mark.heavy
def test_default_job_runs_without_arguments(tmp_path, database):
    process = run_fastloop("trials=1", "min_window_s=0", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert [result.name for result in results(tmp_path)] == ["raw digits"]
    assert "raw" in process.stdout


TELLING = """
from fastloop.options.tracker.none import NoTracker


class Telling(NoTracker):
    def start(self, result):
        return "a run"

    def finish(self, result, folder):
        print("logged")
"""


def test_results_are_logged_and_reported_once_the_table_is_printed(tmp_path):
    (tmp_path / "mine.py").write_text(TELLING)
    tracker = "tracker._target_=mine.Telling"
    process = run_fastloop("loader=raw", *QUICK, tracker, "report=true", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    table, logged, report = (
        next(number for number, line in enumerate(lines) if line.startswith(begin))
        for begin in ("raw ", "logged", "report: ")
    )
    assert table < logged < report


@pytest.mark.heavy
def test_sweep_over_datasets_prints_a_table_per_dataset(tmp_path):
    process = run_fastloop(
        "-m",
        "loader=np_memmap",
        "dataset=synthetic,mydataset",
        "dataset.count=203",
        "trials=1",
        "epochs=1",
        "min_window_s=0",
        "benchmark=traversal",
        "tracker=none",
        "report=false",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert {result.name for result in results(tmp_path)} == {
        "np_memmap synthetic",
        "np_memmap mydataset",
    }
    assert process.stdout.count("samples, batch_size") == 2
    assert "\ntrials=1: no ranks, and differences that are not proven" in process.stderr


def test_first_figures_of_a_single_job_are_told_before_its_last_trial(tmp_path):
    given = ("loader=raw", *QUICK, "trials=2", "isolation=inline", "tracker=none")
    process = run_fastloop(*given, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = process.stderr.splitlines()
    (told,) = [place for place, line in enumerate(lines) if ", from one trial: " in line]
    assert re.search(r"^raw \w+, from one trial: traversal [\d.]+ (us|ms|s)", lines[told])
    assert any(line.startswith("round 2 of 2: ") for line in lines[told:])


@pytest.mark.heavy
def test_tracker_none_never_imports_mlflow(tmp_path):
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
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.stdout.splitlines()[-1] == "False", process.stderr
    assert results(tmp_path)[0].status == "FINISHED"
    assert not (tmp_path / "outputs" / "mlflow.db").exists()


def test_command_runs_inline(tmp_path):
    process = run_fastloop("isolation=inline", *QUICK, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(results(tmp_path)[0].trials) == 1


def test_help_lists_every_group_option_and_setting_in_80_columns(tmp_path):
    help_text = run_fastloop("all", cwd=tmp_path, command="list").stdout
    assert max(map(len, help_text.splitlines())) <= 80
    words = " ".join(help_text.split())
    page = spawn_fastloop("--help", cwd=tmp_path).stdout
    assert max(map(len, page.splitlines())) <= 80
    assert "fastloop list all" in page
    for group in catalogue.groups():
        assert f"\n{group.name}" in help_text
        for option in group.options:
            assert option.meaning, f"{group.name}/{option.name} does not say what it is"
            assert f"\n  {option.name} " in help_text
            assert all(
                f" {group.path}.{setting.name}={setting.default}" in words
                for setting in option.settings
            )
    assert len(catalogue.settings()) >= 15
    assert all(
        f"\n  {setting.name}={setting.default} " in help_text for setting in catalogue.settings()
    )
    group_options = [option for group in catalogue.groups() for option in group.options]
    option_settings = [setting for option in group_options for setting in option.settings]
    assert all(setting.meaning for setting in [*option_settings, *catalogue.settings()])
    assert list(tmp_path.iterdir()) == []


def test_config_and_completion_are_printed(tmp_path):
    assert "batch_size: 64" in spawn_fastloop("--cfg", "job", cwd=tmp_path).stdout
    environment = {"COMP_LINE": "fastloop -m loader=np_", "COMP_POINT": "22", "COMP_CWORD": "2"}
    completion = spawn_fastloop("-sc", "query=bash", cwd=tmp_path, **environment)
    assert completion.stdout.split() == ["loader=np_memmap"], completion.stderr
    assert list(tmp_path.iterdir()) == []


def test_printing_the_config_imports_neither_torch_nor_mlflow(tmp_path):
    program = (
        "import sys; from fastloop.run import main\n"
        "try: main()\nfinally: print(sorted({'torch', 'mlflow', 'numpy'} & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, "--cfg", "job"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


def test_a_job_without_images_imports_neither_torchvision_nor_tensordict(tmp_path):
    """Nor what these import, which takes as long as importing torch, in every process."""
    modules = (
        "fastloop.trial.timed_trial",
        "fastloop.options.loader.raw",
        "fastloop.data.chunked_reader",
    )
    program = "".join(f"import {name}\n" for name in modules)
    program += "import sys; print({'torchvision', 'tensordict', 'torch._dynamo'} & {*sys.modules})"
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


@pytest.mark.heavy
def test_prepare_writes_every_store(tmp_path):
    process = run_fastloop(*MYDATASET, cwd=tmp_path, command="prepare")
    assert process.returncode == 0, process.stderr
    folders = [path for path in (tmp_path / "outputs" / "stores").iterdir() if path.is_dir()]
    stores = {path.suffix.partition("-")[0] for path in folders}  # .<store>-<settings>
    absent = {name for name in options("loader") if f"loader {name}: unsupported" in process.stderr}
    expected = [store_of(name) for name in options("loader") if name not in absent]
    assert stores - {".reference"} == {f".{name}" for name in expected if name}
    assert sorted(path.name for path in (tmp_path / "outputs").iterdir()) == ["data", "stores"]
    second = run_fastloop(*MYDATASET, "loader=np_memmap", cwd=tmp_path, command="prepare")
    assert second.stdout.count("samples") == 1


@pytest.mark.heavy
def test_console_script_equals_the_module(tmp_path):
    assert run_script("--cfg", "job", cwd=tmp_path).stdout == (
        spawn_fastloop("--cfg", "job", cwd=tmp_path).stdout
    )


@pytest.mark.heavy
@pytest.mark.nightly
def test_console_script_imports_from_the_working_folder_as_its_workers_do(tmp_path):
    (tmp_path / "mine.py").write_text(USER_CODE)
    options = ("dataset._target_=mine.Plain", "model._target_=mine.Net", "num_workers=1")
    options = (*options, "collate._target_=mine.collate", "transform._target_=mine.negate")
    # each start of a worker imports torch
    workers = ("multiprocessing_context=spawn", "persistent_workers=true", "min_window_s=0")
    quick = ("epochs=1", "trials=1", "tracker=none", "report=false", "benchmark=training")
    quick = (*quick, "same_data=false")  # fewer starts
    process = run_script(*options, *quick, *workers, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (result,) = results(tmp_path)
    assert result.trials[0].benchmarks.keys() == {"training"}


def run_script(*arguments, cwd):
    script = Path(sys.executable).parent / "fastloop"
    return subprocess.run(
        [script, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.heavy
def test_table_shows_the_repetition_of_fashion_mnist(tmp_path, fashion_root):
    process = run_fastloop(
        "dataset=fashion_mnist",
        f"dataset.root={fashion_root}",
        "dataset.repeat=2",
        "loader=raw",
        "trials=1",
        "epochs=1",
        "tracker=none",
        "report=false",
        "benchmark=traversal",
        "min_window_s=0",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert "fashion_mnist (real images x 2): 1,600 samples" in process.stdout


@pytest.mark.heavy
def test_different_amounts_of_work_are_ranked_separately(tmp_path):
    process = run_fastloop(
        "-m",
        "benchmark=traversal,training",
        "dataset.count=100,203",
        "tracker=none",
        "report=false",
        "min_window_s=0",
        "trials=1",
        "epochs=1",
        "dataset=mydataset",
        "dataset.shape=[5,3]",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("samples, loader raw, batch_size") == 2
    assert "100 samples" in process.stdout
    assert "203 samples" in process.stdout


USER_CODE = """
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from fastloop.core.types import option
from fastloop.data.torch_epochs import torch_epochs

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

def generate_batches():
    for batch in DataLoader(Plain(), 3):
        yield batch

def collate(samples):
    return default_collate(samples)

def negate(sample):
    return -sample[0], sample[1]

class Net(torch.nn.Linear):
    def __init__(self, num_classes):
        super().__init__(3, num_classes)
"""


@pytest.mark.heavy
def test_user_config_folder_adds_options(tmp_path):
    """`-cd my_conf` with a dataset and a loader that follow the Protocols, and a plain Dataset."""
    (tmp_path / "mine.py").write_text(USER_CODE)
    targets = {"dataset/mine": "Mine", "dataset/plain": "Plain", "loader/mine": "MyLoader"}
    for name, target in targets.items():
        (tmp_path / "my_conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my_conf" / f"{name}.yaml").write_text(f"_target_: mine.{target}\n")
    sweep = ("-cd", "my_conf", "-m", "dataset=mine,plain", "loader=mine,np_memmap")
    process = run_fastloop(
        *sweep,
        "epochs=1",
        "trials=1",
        "tracker=none",
        "report=false",
        "min_window_s=0",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    sweep_results = results(tmp_path)
    assert {result.status for result in sweep_results} == {"FINISHED"}
    datasets, loaders = ("mine", "plain"), ("mine", "np_memmap")
    assert {result.name for result in sweep_results} == {
        f"{a} {b}" for b in datasets for a in loaders
    }
    assert "mine: 30 samples" in process.stdout
    assert "Plain: 30 samples" in process.stdout


def test_user_loaders_are_ranked_on_the_data_they_bring(tmp_path):
    (tmp_path / "mine.py").write_text(USER_CODE)
    targets = "loader._target_=mine.make_loader,mine.generate_batches"
    quick = ("epochs=1", "trials=3", "tracker=none", "report=false", "benchmark=traversal")
    process = run_fastloop("-m", targets, *quick, "min_window_s=0", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    names = {"mine.make_loader own_data", "mine.generate_batches own_data"}
    assert {result.name for result in results(tmp_path)} == names
    heading = "own data of mine.make_loader and mine.generate_batches: 30 samples"
    assert process.stdout.count(heading) == 1
    assert "mine.generate_batches" in process.stdout
    assert "10 batches for 30 samples, the loader's own batch size" in " ".join(
        process.stdout.split()
    )
    sizes = {result.loader: result.params["batch_size"] for result in results(tmp_path)}
    assert sizes == {"mine.make_loader": 64, "mine.generate_batches": "its own"}
    (heading_line,) = [line for line in process.stdout.splitlines() if heading in line]
    assert "batch_size" not in heading_line  # the loaders' batch sizes differ


def test_sweep_rejects_several_trackers(tmp_path):
    process = run_fastloop("-m", "tracker=none,mlflow", cwd=tmp_path)
    assert process.returncode == 1
    assert "are the same for all jobs of a sweep" in process.stderr
    assert list(tmp_path.iterdir()) == []


WRONG_LOADER = """
from contextlib import contextmanager
from fastloop.options.loader.np_memmap import NpMemmapLoader

class WrongLoader(NpMemmapLoader):
    @contextmanager
    def open(self, prepared, plan):
        with super().open(prepared, plan) as epochs:
            calls = []
            def wrong_epochs(epoch):
                calls.append(epoch)
                for source, targets in epochs(epoch):
                    yield source, targets if len(calls) == 1 else (targets + 1) % 10
            yield wrong_epochs
"""


def test_gate_rejects_loader_that_is_correct_only_in_its_first_epoch(tmp_path):
    (tmp_path / "wrong_loader.py").write_text(WRONG_LOADER)
    overrides = ["loader=np_memmap,raw", *QUICK, "epochs=2"]
    valid = run_fastloop("-m", *overrides, cwd=tmp_path)
    assert valid.returncode == 0, valid.stderr
    invalid = run_fastloop(
        "loader=np_memmap",
        "loader._target_=wrong_loader.WrongLoader",
        "tracker=none",
        *SMALL,
        cwd=tmp_path,
    )
    assert invalid.returncode == 1
    result = max(results(tmp_path), key=lambda result: result.tags["sweep"])
    assert result.status == "FAILED"
    assert result.status_reason == "invalid: the samples or their labels are not the dataset's"
    assert result.trials == []
    assert "rank" not in invalid.stdout


@pytest.mark.heavy
def test_invalid_job_names_its_damaged_store_which_the_next_command_writes_again(tmp_path):
    large = ("dataset.count=1000", "dataset.shape=[28,28]")  # for the digests in a seal
    sweep = ("loader=np_memmap", *QUICK, *large)
    assert run_fastloop(*sweep, cwd=tmp_path).returncode == 0
    (rows,) = tmp_path.glob("outputs/stores/*.npy/0.npy")
    with rows.open("r+b") as file:
        file.seek(rows.stat().st_size // 2)
        file.write(b"\xff" * 4)
    process = run_fastloop(*sweep, cwd=tmp_path)
    assert process.returncode == 1
    difference = "invalid: the samples or their labels are not the dataset's"
    damage = f"{rows.parent}: its files have changed since they were written"
    _, _, said = process.stderr.partition("better known after the first round\n")
    assert said == f"{difference}; {damage}; the next command writes it again\n"
    assert run_fastloop(*sweep, cwd=tmp_path).returncode == 0


@pytest.mark.heavy
def test_diverging_loss_is_recorded(tmp_path):
    process = run_fastloop(
        "dataset=digits",
        "learning_rate=1e9",
        "trials=1",
        "tracker=none",
        "report=false",
        "benchmark=training",
        "epochs=2",
        "min_window_s=0",
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    (result,) = results(tmp_path)
    assert not result.trials[0].benchmarks["training"].losses[-1] < 1e9


@pytest.mark.heavy
def test_seconds_and_batches_bound_a_measurement(tmp_path):
    bounds = ("trials=20", "seconds=0.001", "batches=2", "epochs=1")
    process = run_fastloop(
        *["-m", "loader=raw,np_memmap", "benchmark=traversal", "tracker=none", "report=false"],
        *[*MYDATASET, *bounds],
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert [len(result.trials) for result in results(tmp_path)] == [1, 1]
    assert "stopped early" in process.stdout
    assert "1 of 20 trials" in process.stdout
    assert "128 of 203 samples" in process.stdout
    refused = run_fastloop("-m", "loader=raw", *bounds, "interleave=false", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("seconds=0.001 with interleave=false: ")
    assert refused.stderr.count("\n") == 1
