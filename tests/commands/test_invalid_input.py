"""Invalid input: one clear line, a non-zero exit status, no traceback, no partial files."""

from __future__ import annotations

import gzip
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, fill_disk, results, run_fastloop
from options import MYDATASET, options

from fastloop.config.catalogue import groups

pytestmark = pytest.mark.slow


def error_line(process) -> str:
    """The only line that the failed process printed, besides how long it would have taken."""
    assert process.returncode not in (0, None)
    assert "Traceback" not in process.stderr + process.stdout
    assert process.stdout == ""
    forecast = r"^\d+ jobs? x .*: about .* better known after the first round\n"
    line = re.sub(forecast, "", process.stderr).strip()
    assert line.count("\n") == 0, line
    return line


LOADERS = ", ".join(options("loader"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("loader=nope", f"loader=nope: there is no such option; allowed: {LOADERS}"),
        ("dataset=nope", "dataset=nope: there is no such option; allowed: "),
        ("experiment=nope", "experiment=nope: there is no such option; allowed: "),
        ("trails=3", "trails=3: there is no such setting; did you mean trials?"),
        ("nope=1", "nope=1: there is no such setting; allowed: what `fastloop list settings`"),
        ("+foo=1", "foo=1: there is no such setting; allowed: what `fastloop list settings`"),
        (
            "loader=raw loader.nope=1",
            "loader.nope=1: there is no such setting; loader=raw has no settings of its own; ",
        ),
        (
            "loader=fastloop loader.nope=1",
            "loader.nope=1: there is no such setting; allowed with loader=fastloop: "
            "loader.in_memory, loader.num_threads, loader.ahead, loader.store",
        ),
        (
            "loader=fastloop loader.store.nope=x",
            "loader.store.nope=x: there is no such setting; allowed with store@loader.store=npy: ",
        ),
        (
            "experiment=decoders dataset.nope=1",
            "dataset.nope=1: there is no such setting; allowed with dataset=photos: dataset.root, ",
        ),
        ("trials=0", "trials=0: allowed: auto, or a whole number from 1 on"),
        ("trials=-1", "trials=-1: allowed: auto, or a whole number from 1 on"),
        ("trials=abc", "trials=abc: allowed: auto, or a whole number from 1 on"),
        ("-m loader=raw,preload trials=auto,3", "trials=auto,3: allowed: auto for all jobs"),
        (
            "-m loader=raw,preload trials=auto interleave=false",
            "trials=auto with interleave=false: allowed: interleave=true",
        ),
        ("trials=true", "trials=true: allowed: auto, or a whole number from 1 on"),
        ("batch_size=0", "batch_size=0: allowed: 1 or more"),
        ("num_workers=-1", "num_workers=-1: allowed: 0 or more"),
        ("epochs=1.5", "epochs=1.5: allowed: an integer"),
        ("pin_memory=1", "pin_memory=1: allowed: true, false"),
        ("prefetch_factor=2", "prefetch_factor=2 needs workers: num_workers is 0"),
        ("device=toaster", "device=toaster: allowed are auto, cpu, mps, cuda and cuda:<number>"),
        ("isolation=thread", "isolation=thread: allowed: forkserver, spawn, inline"),
        ("learning_rate=-1", "learning_rate=-1: allowed: more than 0"),
        ("loader=a,b", "loader=a,b: several values are a sweep, which needs -m"),
        (
            "-m num_workers=range(0,1000000000)",
            "(0,1000000000): these are 1,000,000,000 values; allowed: at most 10,000",
        ),
        ("-m num_workers=range(0,4,0)", "allowed: range(start,stop,step) with a step"),
        ("-m epochs=range(0,inf)", "epochs=range(0,inf): allowed: finite numbers"),
        (
            "-m batch_size=range(1,200) epochs=range(1,200)",
            "these overrides make 39,601 jobs; allowed: at most 10,000",
        ),
        ("=3", "name=value"),
        ("loader", "loader"),
        ("dataset=mydataset dataset.shape=[0]", "dataset.shape"),
        ("loader=[raw]", "loader=[raw]: allowed: one option; several need -m loader=a,b"),
        ("-m loader=[raw,np_memmap]", "allowed: one option; several need -m loader=a,b"),
        ("benchmark={}", "benchmark={}: allowed: one option"),
        ("benchmark=[]", "benchmark=[]: allowed: one option"),
        ("benchmark=[nope]", "benchmark=nope: there is no such option"),
        ("loader={}", "loader={}: allowed: one option"),
        ("loader=null", "loader=null: allowed: one option"),
        ("~launcher", "~launcher: every job has one; launcher=… changes it"),
        ("~trials", "~trials: every job has one; trials=… changes it"),
        ("--resolve", "--resolve: allowed only with --cfg or --help"),
        ("batch_size=${nope}", "batch_size=${nope}: there is no setting nope; allowed: ${<another"),
        ("batch_size=${nope:1}", "batch_size=${nope:1}: ${nope:...} is not known; allowed: ${<"),
        ("batch_size=${batch_size}", "batch_size=${batch_size}: it refers to itself; allowed"),
        (
            "batch_size=${oc.env:NOT_SET_HERE}",
            "batch_size=${oc.env:NOT_SET_HERE}: the environment has no variable NOT_SET_HERE",
        ),
        (
            "batch_size=${oc.decode:'['}",
            "batch_size=${oc.decode:'['}: it can't be resolved",
        ),
        ("-m loader=glob(zzz*)", "loader=glob(zzz*): it has no values"),
        ("-m trials=range(3,1)", "trials=range(3,1): it has no values"),
        ("hydra.run.dir=", "hydra.run.dir=: allowed: the path of a folder"),
        (
            "loader=np_memmap loader.store.root=",
            "loader.store.root=: allowed: the path of a folder",
        ),
        (
            "tracker._target_=builtins.dict",
            "tracker: builtins.dict does not implement Tracker: it lacks attach",
        ),
        ("-m trials=1,-1", "trials=-1: allowed: auto, or a whole number from 1 on"),
        ("-m loader=raw,nope", "loader=nope: there is no such option"),
        ("loader._target_=nope.make", "loader._target_=nope.make: there is no module nope"),
        (
            "dataset.nope=3",
            "dataset.nope=3: there is no such setting; dataset=digits has no settin",
        ),
        (
            "dataset.count=3",
            "dataset.count=3: dataset=digits has no such setting; allowed with dataset=integers,",
        ),
        (
            "-m loader=raw,preload loader.num_threads=2",
            "loader.num_threads=2: loader=raw has no such setting; allowed with loader=",
        ),
        ("loader=raw loader.store=null", ", webdataset, zarr"),
        (
            "experiment=decoders dataset=image_folder dataset.root=.",
            "experiment=decoders sets dataset.count, which dataset=image_folder does not have; "
            "~dataset.count leaves it out",
        ),
    ],
)
def test_wrong_names_and_values_are_rejected_in_one_line(tmp_path, overrides, message):
    assert message in error_line(run_fastloop(*overrides.split(), cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("override", ["pin_memory=true", "device=cuda", "device=cuda:7"])
def test_absent_hardware_is_unsupported(tmp_path, override):
    import torch

    if torch.accelerator.is_available() and override != "device=cuda:7":
        pytest.skip("this machine has an accelerator")
    line = error_line(run_fastloop(override, *QUICK, cwd=tmp_path))
    assert line.startswith(f"unsupported: {override}: ")
    assert list(tmp_path.iterdir()) == []


def test_unsupported_job_of_a_sweep_is_a_row(tmp_path):
    process = run_fastloop("-m", "device=cpu,cuda:7", *QUICK, cwd=tmp_path)
    assert process.returncode == 0
    assert "skipped: device=cuda:7" in process.stdout
    assert sorted(result.status for result in results(tmp_path)) == ["FAILED", "FINISHED"]


def test_sweep_of_unsupported_jobs_alone_fails(tmp_path):
    process = run_fastloop("-m", "device=cuda:7,cuda:8", *QUICK, cwd=tmp_path)
    assert process.returncode == 1
    assert "skipped: device=cuda:7" in process.stdout
    assert "skipped: device=cuda:8" in process.stdout


@pytest.mark.parametrize("loader", ["np_memmap", "tensorclass"])
def test_loader_with_an_incompatible_store_is_unsupported(tmp_path, loader):
    other = {"np_memmap": "tensordict", "tensorclass": "npy"}[loader]
    process = run_fastloop(f"loader={loader}", f"store@loader.store={other}", *QUICK, cwd=tmp_path)
    assert error_line(process).startswith("unsupported: rows ")


def test_concurrent_hydra_launcher_is_rejected(tmp_path):
    arguments = ("-m", "loader=raw,preload", "hydra/launcher=joblib", *QUICK)
    line = error_line(run_fastloop(*arguments, cwd=tmp_path))
    assert line.startswith("hydra/launcher=joblib: it runs jobs concurrently")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("outputs", ["a file", "no folder"])
def test_unwritable_outputs_folder_is_named(tmp_path, outputs):
    path = tmp_path / "file" if outputs == "a file" else Path("/proc/none")
    (tmp_path / "file").write_text("")
    line = error_line(run_fastloop(*QUICK, cwd=tmp_path, FASTLOOP_OUTPUTS=str(path)))
    assert line.startswith("the outputs folder (FASTLOOP_OUTPUTS): ")
    assert str(path) in line


@pytest.mark.parametrize("command", ["explain", "tune", "attach"])
def test_unwritable_outputs_folder_is_named_before_anything_runs(tmp_path, command):
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    arguments = ["train.py"] if command == "attach" else ["loader=raw", *MYDATASET]
    process = run_fastloop(*arguments, cwd=tmp_path, command=command, FASTLOOP_OUTPUTS="/proc/none")
    line = error_line(process)
    assert line.startswith("the outputs folder (FASTLOOP_OUTPUTS): "), line
    assert "/proc/none" in line
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_empty_outputs_variable_means_the_default_folder(tmp_path):
    process = run_fastloop(*QUICK, cwd=tmp_path, FASTLOOP_OUTPUTS="")
    assert process.returncode == 0, process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["outputs"]
    assert len(results(tmp_path)) == 1


@pytest.mark.parametrize("jobs", [(), ("-m", "loader=raw,preload")])
def test_unwritable_dataset_root_is_named_once(tmp_path, jobs):
    wrong = ("dataset.root=/proc/none", "trials=3")
    line = error_line(run_fastloop(*jobs, *QUICK, *wrong, cwd=tmp_path))
    assert line.startswith("dataset.root=/proc/none: ")


OWN_PATHS = [
    (option.name, setting.name)
    for group in groups()
    if group.name == "dataset"
    for option in group.options
    for setting in option.settings
    if setting.is_own_path
]
"""Datasets of the user's own files, with the settings that name them."""


@pytest.mark.parametrize("jobs", [("loader=raw",), ("-m", "loader=raw,preload")], ids=" ".join)
@pytest.mark.parametrize(("dataset", "setting"), OWN_PATHS)
def test_missing_files_are_told_before_anything_else(tmp_path, dataset, setting, jobs):
    (tmp_path / "table.csv").touch()
    other = ("dataset.csv_file=table.csv",) if setting == "root" and dataset == "csv_images" else ()
    chosen = (f"dataset={dataset}", f"dataset.{setting}=/nope", *other)
    process = run_fastloop(*jobs, *chosen, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (1, "")
    told = f"dataset.{setting}=/nope: no such file or folder; dataset={dataset} reads "
    assert process.stderr.startswith(told)
    assert process.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("image_folder", "dataset.root=outputs/data/images: no such file or folder; dataset="),
        ("parquet", "dataset=parquet: dataset.path=PATH names your own .parquet file"),
    ],
)
@pytest.mark.parametrize("jobs", [("loader=raw",), ("-m", "loader=raw,preload")], ids=" ".join)
def test_files_that_are_not_named_are_asked_for(tmp_path, dataset, message, jobs):
    process = run_fastloop(*jobs, f"dataset={dataset}", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(message)
    assert process.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_unwritable_store_root_is_named(tmp_path):
    arguments = ("loader=np_memmap", "loader.store.root=/proc/none", *QUICK)
    line = error_line(run_fastloop(*arguments, cwd=tmp_path))
    assert line == "loader.store.root=/proc/none: No such file or directory"


def test_missing_folder_is_told_once_for_all_loaders(tmp_path):
    arguments = ("-m", "loader=raw,np_memmap", "dataset=image_folder", "dataset.root=none")
    line = error_line(run_fastloop(*arguments, cwd=tmp_path, command="prepare"))
    assert line.startswith("dataset.root=none: no such file or folder; dataset=image_folder reads")


@pytest.mark.heavy
@pytest.mark.parametrize("download", ["false", "true"])
def test_missing_fashion_mnist_names_its_files_and_folder(tmp_path, download):
    """The network is unreachable: nothing listens on the proxy's port."""
    process = run_fastloop(
        "dataset=fashion_mnist",
        f"dataset.download={download}",
        "dataset.root=data",
        cwd=tmp_path,
        http_proxy="http://127.0.0.1:9",
    )
    line = error_line(process)
    assert "put {train,t10k}-{images-idx3,labels-idx1}-ubyte into data/FashionMNIST/raw" in line
    assert "dataset=digits, which needs no download" in line
    if download == "true":
        assert "(Error downloading train-images-idx3-ubyte.gz: <urlopen error [Errno" in line


@pytest.mark.heavy
def test_download_from_a_silent_server_times_out(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections but never answers
        port = silent.getsockname()[1]
        process = run_fastloop(
            "dataset=fashion_mnist",
            "dataset.root=data",
            "dataset.download_timeout_s=0.5",
            cwd=tmp_path,
            http_proxy=f"http://127.0.0.1:{port}",
        )
    assert "FashionMNIST not found (timed out)" in error_line(process)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("damage", "kind"),
    [("empty", "labels-idx1"), ("truncated", "images-idx3"), ("foreign", "labels-idx1")],
)
def test_damaged_idx_file_is_named(tmp_path, fashion_root, damage, kind):
    shutil.copytree(fashion_root / "FashionMNIST", tmp_path / "FashionMNIST")
    path = tmp_path / "FashionMNIST" / "raw" / f"train-{kind}-ubyte"
    path.chmod(0o644)
    content = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "truncated": content[: len(content) // 2], "foreign": b"GIF89a" * 500}[
            damage
        ]
    )
    process = run_fastloop("dataset=fashion_mnist", f"dataset.root={tmp_path}", cwd=tmp_path)
    assert path.name in error_line(process)


def write_npz(path: Path, **arrays: object) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: np.asarray(value) for name, value in arrays.items()})


@pytest.mark.parametrize(
    "damage", ["empty", "truncated", "foreign", "other keys", "pickled objects", "lengths"]
)
def test_damaged_npz_file_is_named(tmp_path, damage):
    path = tmp_path / "mydataset-203x5x3.npz"
    write_npz(path, data=np.zeros((203, 5, 3), np.float32), targets=np.zeros(203, np.int64))
    content = path.read_bytes()
    if damage == "other keys":
        write_npz(path, x=[1], y=[2])
    elif damage == "pickled objects":
        write_npz(path, data=np.array([{}] * 203, object), targets=[0] * 203)
    elif damage == "lengths":
        write_npz(path, data=np.zeros((203, 5, 3)), targets=[0] * 200)
    else:
        foreign = gzip.compress(b"no npz")
        path.write_bytes({"empty": b"", "truncated": content[:500], "foreign": foreign}[damage])
    line = error_line(run_fastloop(*QUICK, f"dataset.root={tmp_path}", cwd=tmp_path))
    assert str(path) in line


@pytest.mark.heavy
def test_full_disk_while_writing_leaves_no_partial_store(tmp_path, small_disk):
    process = run_fastloop(
        *("loader=np_memmap", f"loader.store.root={small_disk}", *QUICK, "dataset.count=200000"),
        cwd=tmp_path,
    )
    assert f"No space left on device: '{small_disk}/mydataset-" in error_line(process)
    assert [path.name for path in small_disk.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.heavy
@pytest.mark.parametrize("command", ["explain", "tune"])
def test_full_disk_is_a_plain_line_with_the_path(tmp_path, small_disk, command):
    store = ("loader=np_memmap", f"loader.store.root={small_disk}", "dataset.count=200000")
    process = run_fastloop(*MYDATASET, *store, cwd=tmp_path, command=command)
    line = error_line(process)
    assert line.startswith(f"No space left on device: '{small_disk}/mydataset-"), line


def test_full_disk_from_the_start_is_reported(tmp_path, small_disk):
    fill_disk(small_disk)
    process = run_fastloop("trials=1", cwd=tmp_path, FASTLOOP_OUTPUTS=str(small_disk))
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert "No space left on device" in process.stderr
