"""The lines that a new user types first: each does what it says, or tells in one line what does."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from pathlib import Path

import fork_server
import pytest
from commands import QUICK, results, run_fastloop

from fastloop.core.result_io import RESULT_FILE

pytestmark = pytest.mark.slow
SHORT = "epochs=1 trials=1 benchmark=traversal tracker=none report=false min_window_s=0"
NUM_LOADERS = len([*(Path(__file__).parents[2] / "conf" / "loader").glob("*.yaml")])
FOLDER = "dataset=image_folder dataset.root=photos"
CODE = """
import torch
from torch.utils.data import Dataset, default_collate


class Squares(Dataset):
    def __init__(self, count: int = 40) -> None:
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        return torch.full((3,), float(index)), index % 4


def collate(samples):
    return default_collate(samples)
"""


def type_line(line: str, cwd: Path, **environment: str):
    """What `fastloop <line>` does in that folder."""
    words = shlex.split(line)
    return fork_server.run("fastloop", tuple(words), cwd, dict(os.environ) | environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working folder with a user's module, a script and photographs of several sizes."""
    from PIL import Image

    path = tmp_path_factory.mktemp("obvious")
    (path / "mine.py").write_text(CODE)
    (path / "train.py").write_text("print('trained')\n")
    for label, size in (("cat", (56, 35)), ("cat", (58, 33)), ("dog", (40, 40))):
        (path / "photos" / label).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, "red").save(path / "photos" / label / f"{size[0]}.jpg")
    return path


REFUSED = [
    ("run loader=raw,fastloop", "loader=raw,fastloop: several values are a sweep, which needs -m"),
    ("run dataset=imagefolder", "did you mean dataset=image_folder?"),
    ("run dataset=image_folder dataset.path=photos", "did you mean dataset.root?"),
    (
        "run dataset=image_folder root=photos",
        "root=photos: there is no such setting; did you mean dataset.root?",
    ),
    ("run dataset=imagenet", "dataset=image_folder dataset.root=<folder> reads a folder per class"),
    ("run dataset=cifar10", "dataset._target_=torchvision.datasets.CIFAR10"),
    ("run dataset=image_folder dataset.root=none", "dataset.root=none: no such file or folder"),
    ("run loader=raw loader.num_workers=2", "did you mean num_workers?"),
    ("run workers=2", "did you mean num_workers?"),
    ("run num_worker=2", "did you mean num_workers?"),
    ("run shuffle=false", "order=random shuffles, order=sequential does not"),
    ("run shuffle=true", "order=random shuffles, order=sequential does not"),
    ("run store=memmap", "store@loader.store=<option> picks another"),
    ("run order=shuffle", "did you mean order=random?"),
    ("run benchmark=throughput", "did you mean benchmark=traversal?"),
    ("run transform=resize", "did you mean transform=center_crop"),
    ("run model=resnet50", "model._target_=torchvision.models.resnet50"),
    ("run loader=torch", "loader=raw is torch's DataLoader over the dataset itself"),
    ("run loader=pytorch", "loader=raw is torch's DataLoader over the dataset itself"),
    ("run loader=fastloader", "did you mean loader=fastloop?"),
    ("run loader=mosaic", "loader._target_=<module>.<function>"),
    ("run loader=all", "all options are -m 'loader=glob(*)'"),
    ("run 'loader=*'", "all options are -m 'loader=glob(*)'"),
    ("run device=gpu", "did you mean cuda?"),
    ("run --batch_size 32", "--batch_size: settings are written without dashes: batch_size=32"),
    ("run --batch-size=32", "settings are written without dashes: batch_size=32"),
    ("run --num-workers 4", "settings are written without dashes: num_workers=4"),
    ("run --loader raw", "settings are written without dashes: loader=raw"),
    ("run --dry-run", "--cfg job shows the configuration and runs nothing"),
    ("run epochs=0", "epochs=0: allowed: 1 or more"),
    ("run batch_size=0", "batch_size=0: allowed: 1 or more"),
    ("run num_workers=-1", "num_workers=-1: allowed: 0 or more"),
    ("run resume=true", "resume=true: allowed: the folder of a sweep, or last"),
    ("run 'loader=raw num_workers=2'", "these are several arguments"),
    ("run --config-name mine", "--config-name=mine: there is no such yaml file"),
    ("run hydra/sweeper=optuna", "`fastloop tune` searches for the fastest settings"),
    ("run hydra.verbose=true", "hydra.verbose=true: it has no effect"),
    ("run hydra/job_logging=disabled", "hydra/job_logging=disabled: it has no effect"),
    ("run output=results.csv", "fastloop report writes a CSV file"),
    ("run quiet=true", "2>/dev/null"),
    ("run dataset=mine.Cubes", "the module mine has no Cubes; it has Squares, collate"),
    ("run dataset=tokens dataset.path=train.bin", "dataset.path=train.bin: no such file or folder"),
    ("run decoder=null", "decoder=null: allowed: one option"),
    ("run loader=fastloop +loader.store=null", "loader.store=…, without +"),
    (
        "run -m loader=raw,preload loader.store=null",
        "loader.store=null: allowed: one option, as null does not implement Store",
    ),
    (
        f"run {FOLDER}",
        "images have different sizes (56x35, 58x33, 40x40), so they can't be stacked",
    ),
    (f"run {FOLDER}", "transform=random_resized_crop (training), transform=center_crop"),
    (f"prepare {FOLDER}", "images have different sizes (56x35, 58x33, 40x40)"),
    ("explain loader=raw,np_memmap", "fastloop run -m loader=raw,np_memmap explain=true"),
    ("explain -m loader=raw,np_memmap", "fastloop run -m loader=raw,np_memmap explain=true"),
    ("tune loader=raw,np_memmap", "space= names what else is tried"),
    ("tune loader=raw budget=60", "allowed: a time such as 300s, 5min or 1h"),
    ("options", "did you mean fastloop list?"),
    ("loaders", "did you mean fastloop list?"),
    ("reports", "did you mean fastloop report?"),
    ("list lodaer", "did you mean loader?"),
    ("list loader=torch", "loader=raw is torch's DataLoader"),
    ("report sweep=nope", "sweep=nope: "),
    ("report opne=true", "no such setting"),
    (
        "clean everything",
        "allowed: stores, data, results, reports, attach, check, suite, mlflow, environments",
    ),
    ("clean stores older_than=soon", "allowed: a time such as 12h, 30d or 8w"),
    ("clean yes=true", "with what to remove"),
    ("ui port=0", "port=0: allowed: 1 to 65535"),
    ("ui", "mlflow.db: no results yet; fastloop run produces some"),
    ("compare", "there are no results in"),
    ("compare a", "allowed: two folders, the base first"),
]
FOREIGN = (
    "Input should",
    "pydantic",
    "Hydra",
    "MultiRun",
    "override",
    "Traceback",
    "site-packages",
)
"""Words of other programs' messages."""


@pytest.mark.parametrize(("line", "fact"), REFUSED, ids=[each[0] for each in REFUSED])
def test_line_that_can_not_run_says_in_one_line_which_can(folder, tmp_path, line, fact):
    process = type_line(line, folder, FASTLOOP_OUTPUTS=str(tmp_path / "outputs"))
    assert process.returncode not in (0, None)
    assert process.stdout == ""
    *plan, message = process.stderr.strip().splitlines()
    # what only reading the data can tell comes after the line on what the command will do
    assert all(" x " in line for line in plan)
    assert len(plan) <= 1
    assert fact in message
    assert not [word for word in FOREIGN if word in message]
    # a job whose data can't be read is kept as a failed one
    assert not [result for result in results(tmp_path) if result.trials]


UNDERSTOOD = [
    ("run +experiment=quickstart --cfg job", "experiment"),
    ("run dataset=mine.Squares --cfg job", "_target_: mine.Squares"),
    ("run collate_fn=mine.collate --cfg job", "_target_: mine.collate"),
    ("run collate=mine.collate --cfg job", "_target_: mine.collate"),
    ("run loader=mine.make_loader --cfg job", "_target_: mine.make_loader"),
    (f"run {FOLDER} --cfg job", "root: photos"),
    ("run --cfg job", "batch_size: 64"),
    ("--version", "fastloop "),
    ("--help", "list the groups of options"),
    ("list", f"how samples are read and batched ({NUM_LOADERS} options, raw by default)"),
    ("list loader", "DataLoader over the dataset itself"),
    ("list loaders", "DataLoader over the dataset itself"),
    ("list loader=fastloop", "loader.num_threads=null"),
    ("list settings", "num_workers=0"),
    ("list all", "loader.num_threads=null"),
    ("clean --help", "older_than="),
    ("clean", "stores"),
    ("ui --help", "port=5000"),
    ("attach -- python train.py", "trained"),
    ("attach python train.py", "trained"),
    ("attach python3 train.py", "trained"),
    (f"attach {shlex.quote(sys.executable)} train.py", "trained"),
    ("attach train.py", "trained"),
]


@pytest.mark.parametrize(("line", "fact"), UNDERSTOOD, ids=[each[0] for each in UNDERSTOOD])
def test_line_that_is_understood_prints_what_was_asked_for(folder, line, fact):
    process = type_line(line, folder, FASTLOOP_OUTPUTS=str(folder / "none"))
    assert process.returncode == 0, process.stderr
    assert fact in process.stdout


def test_bare_fastloop_prints_help_and_measures_nothing(folder):
    process = type_line("", folder)
    assert process.returncode == 0
    assert process.stdout.startswith("usage: fastloop <command>")
    assert "`fastloop run` measures a small set" in process.stdout
    assert not (folder / "outputs").exists()


def test_help_of_run_is_a_page_of_all_groups_and_settings(folder):
    lines = type_line("run --help", folder).stdout.splitlines()
    assert len(lines) < 150
    assert any("fastloop list" in line for line in lines)
    assert any("np_memmap" in line for line in lines)
    assert any(line.startswith("  num_workers=0") for line in lines)


@pytest.mark.parametrize("root", ["~/photos", '"~/photos"'], ids=["unquoted", "quoted"])
def test_home_folder_is_expanded(folder, root):
    line = f"run dataset=image_folder 'dataset.root={root}' dataset.size=[8,8] {SHORT}"
    process = type_line(line, folder, HOME=str(folder), FASTLOOP_OUTPUTS=str(folder / "home"))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "image_folder" in process.stdout


def test_own_dataset_and_collate_are_named_like_options(folder):
    line = f"run dataset=mine.Squares collate=mine.collate batch_size=8 {SHORT}"
    process = type_line(line, folder, FASTLOOP_OUTPUTS=str(folder / "own"))
    assert process.returncode == 0, process.stderr
    assert "40 samples" in process.stdout


def test_own_dataset_is_an_option_of_a_sweep(tmp_path):
    (tmp_path / "mine.py").write_text(CODE)
    process = run_fastloop("-m", "dataset=digits,mine.Squares", *SHORT.split(), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    names = {result.dataset: result.num_samples for result in results(tmp_path)}
    assert names["Squares"] == 40


def test_single_job_has_no_rank_and_a_short_batch_is_noted(tmp_path):
    process = run_fastloop(*QUICK, "batch_size=100000", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    (row,) = [line for line in process.stdout.splitlines() if line.startswith("raw")]
    assert " - " in row
    assert "one short batch" in process.stdout
    assert "(batch_size=100000, and an epoch has 203 samples)" in process.stdout


def test_job_that_can_not_run_here_is_skipped_and_has_not_failed(tmp_path):
    process = run_fastloop("-m", "loader=raw", "device=cpu,cuda:7", *QUICK, cwd=tmp_path)
    assert process.returncode == 0
    assert "skipped: device=cuda:7" in process.stdout
    assert "FAILED" not in process.stdout
    (skipped,) = [each for each in results(tmp_path) if each.status != "FINISHED"]
    assert skipped.status_reason.startswith("unsupported: device=cuda:7")
    report = run_fastloop("format=md", cwd=tmp_path, command="report")
    assert report.returncode == 0, report.stderr
    text = Path(report.stdout.splitlines()[0]).read_text()
    assert "skipped" in text
    assert "FAILED" not in text


@pytest.mark.heavy
def test_newest_good_sweeps_are_reported_and_compared(tmp_path):
    for _ in range(2):
        assert run_fastloop(*QUICK, cwd=tmp_path).returncode == 0
    good = [path.parents[1] for path in sorted(tmp_path.glob(f"outputs/2*/*/*/{RESULT_FILE}"))]
    assert run_fastloop("-m", "device=cuda:7,cuda:8", *QUICK, cwd=tmp_path).returncode == 1
    for arguments in ((), ("sweep=last",)):
        report = run_fastloop("format=md", *arguments, cwd=tmp_path, command="report")
        assert report.returncode == 0, report.stderr
        assert str(good[-1]) in report.stdout
        assert "none of its jobs has finished" in report.stderr
    newest = run_fastloop(cwd=tmp_path, command="compare")
    named = run_fastloop(
        str(good[0]), "/".join(good[1].parts[-2:]), cwd=tmp_path, command="compare"
    )
    assert newest.stdout.splitlines()[0] == f"base={good[0]} new={good[1]}"
    assert newest.stdout.splitlines()[1:] == named.stdout.splitlines()
    assert newest.stderr == named.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [("--open",), ("open=true",)])
def test_report_opens_in_the_browser_of_the_environment(tmp_path, arguments):
    assert run_fastloop(*QUICK, cwd=tmp_path).returncode == 0
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    process = run_fastloop(*arguments, cwd=tmp_path, command="report", BROWSER=str(browser))
    assert process.returncode == 0, process.stderr
    (page,) = tmp_path.glob("outputs/2*/*/report/report.html")
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()


def test_clean_shows_first_and_removes_only_inside_of_outputs(tmp_path):
    assert run_fastloop(*QUICK, "loader=np_memmap", cwd=tmp_path).returncode == 0
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (tmp_path / "outputs" / "stores" / "link").symlink_to(outside)
    before = sorted(tmp_path.rglob("*"))
    shown = run_fastloop("stores", "results", cwd=tmp_path, command="clean")
    assert shown.returncode == 0, shown.stderr
    assert "fastloop clean stores results yes=true removes stores results" in shown.stdout
    assert sorted(tmp_path.rglob("*")) == before
    old = run_fastloop("stores", "older_than=1h", "yes=true", cwd=tmp_path, command="clean")
    assert "removed: 0.0 MiB" in old.stdout
    assert sorted(tmp_path.rglob("*")) == before
    removed = run_fastloop("stores", "yes=true", cwd=tmp_path, command="clean")
    assert removed.returncode == 0, removed.stderr
    assert not (tmp_path / "outputs" / "stores").exists()
    assert (outside / "file").read_text() == "mine"
    assert len(results(tmp_path)) == 1
    run_fastloop("results", "data", "yes=true", cwd=tmp_path, command="clean")
    assert not list(tmp_path.glob("outputs/2*"))


def test_clean_removes_only_what_fastloop_has_made(tmp_path):
    """outputs/ is Hydra's usual folder, and outputs/data/images that of dataset=image_folder."""
    made = ("dataset=mydataset", "dataset.count=100", "loader=raw")
    process = run_fastloop(*made, cwd=tmp_path, command="prepare")
    assert process.returncode == 0, process.stderr
    outputs = tmp_path / "outputs"
    for name in ("photos-4-256x256", "FashionMNIST"):
        (outputs / "data" / name).mkdir()
    for name in ("tokens-5000.bin", "texts-3.11.7-all.npz"):
        (outputs / "data" / name).write_text("made")
    kept = [
        outputs / "data" / "images" / "cat" / "1.jpg",
        outputs / "data" / "photos" / "mine.jpg",
        outputs / "2026-01-01" / "12-00-00" / ".hydra" / "config.yaml",
        outputs / "2026-01-01" / "12-00-00" / "model.pt",
    ]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (outputs / "2026-01-01" / "13-00-00-123456").mkdir()
    process = run_fastloop("data", "results", "yes=true", cwd=tmp_path, command="clean")
    assert process.returncode == 0, process.stderr
    assert [path for path in kept if not path.is_file()] == []
    assert {path.name for path in (outputs / "data").iterdir()} == {"images", "photos"}
    assert not (outputs / "2026-01-01" / "13-00-00-123456").exists()


def test_clean_lists_and_removes_the_suite_but_not_its_results(tmp_path):
    result = tmp_path / "outputs" / "suite" / "2026-11" / "quick" / "tokens" / "0" / "result.json"
    published = tmp_path / "results" / "2026-11" / "box.json"
    for path in (result, published):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    listed = run_fastloop(cwd=tmp_path, command="clean")
    assert re.search(r"^  suite +1 +0\.0 MiB", listed.stdout, re.M), listed.stdout
    assert result.exists()
    removed = run_fastloop("suite", "yes=true", cwd=tmp_path, command="clean")
    assert removed.returncode == 0, removed.stderr
    assert [*(tmp_path / "outputs").iterdir()] == []
    assert published.exists()


def test_clean_follows_no_linked_folder_out_of_outputs(tmp_path):
    outside = tmp_path / "elsewhere"
    (outside / "2026-01-01" / "12-00-00").mkdir(parents=True)
    (outside / "stores" / "store").mkdir(parents=True)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    (outputs / "stores").symlink_to(outside / "stores")
    (outputs / "2026-01-01").symlink_to(outside / "2026-01-01")
    process = run_fastloop("stores", "results", "yes=true", cwd=tmp_path, command="clean")
    assert process.returncode == 0, process.stderr
    assert (outside / "2026-01-01" / "12-00-00").is_dir()
    assert (outside / "stores" / "store").is_dir()


def test_ui_names_a_port_that_is_in_use(tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "mlflow.db").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = run_fastloop(f"port={port}", cwd=tmp_path, command="ui")
    assert process.returncode == 1
    assert process.stderr.startswith(f"port={port}: address already in use")
