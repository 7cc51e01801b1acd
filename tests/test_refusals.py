"""Bad input: one clear line, a non-zero exit, no traceback, nothing half-written."""

from __future__ import annotations

import gzip
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from commands import QUICK, fastloop, fill, results
from options import options

pytestmark = pytest.mark.slow


def refused(done) -> str:
    """The one line that the process has said before it ended with a failure."""
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stdout == ""
    said = done.stderr.strip()
    assert said.count("\n") == 0, said
    return said


LOADERS = ", ".join(options("loader"))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("loader=nope", f"loader=nope: there is no such option; allowed are {LOADERS}"),
        ("dataset=nope", "dataset=nope: there is no such option; allowed are "),
        ("experiment=nope", "experiment=nope: there is no such option; allowed are "),
        ("trails=3", "trails: there is no such setting; did you mean trials?"),
        ("+foo=1", "foo: there is no such setting"),
        ("+loader.foo=1", "loader.foo: there is no such setting"),
        ("trials=0", "trials=0: Input should be greater than 0"),
        ("trials=-1", "trials=-1: Input should be greater than 0"),
        ("trials=abc", "trials=abc: Input should be a valid integer"),
        ("trials=true", "trials=True: Input should be a valid integer"),
        ("batch_size=0", "batch_size=0: Input should be greater than 0"),
        ("num_workers=-1", "num_workers=-1: Input should be greater than or equal to 0"),
        ("epochs=1.5", "epochs=1.5: Input should be a valid integer"),
        ("pin_memory=1", "pin_memory=1: Input should be a valid boolean"),
        ("prefetch_factor=2", "prefetch_factor=2 needs workers: num_workers is 0"),
        ("device=toaster", "device=toaster: allowed are auto, cpu, mps, cuda and cuda:<number>"),
        ("isolation=thread", "isolation=thread: Input should be 'forkserver', 'spawn' or 'inline'"),
        ("learning_rate=-1", "learning_rate=-1: Input should be greater than 0"),
        ("loader=a,b", "loader=a,b: several values need -m"),
        ("=3", "name=value"),
        ("loader", "loader"),
        ("dataset=mydataset dataset.shape=[0]", "dataset.shape"),
        ("-m trials=1,-1", "trials=-1: Input should be greater than 0"),
        ("-m loader=raw,nope", "loader=nope: there is no such option"),
        ("loader._target_=nope.make", "loader._target_=nope.make: ModuleNotFoundError: No module"),
        (
            "dataset.count=3",
            "dataset.count: there is no such setting; +dataset.count=… gives it to",
        ),
    ],
)
def test_a_wrong_name_or_value_is_one_line_and_nothing_is_written(tmp_path, wrong, said):
    assert said in refused(fastloop(*wrong.split(), cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["pin_memory=true", "device=cuda", "device=cuda:7"])
def test_what_this_machine_lacks_is_unsupported(tmp_path, wrong):
    import torch

    if torch.accelerator.is_available() and wrong != "device=cuda:7":
        pytest.skip("an accelerator is here")
    said = refused(fastloop(wrong, *QUICK, cwd=tmp_path))
    assert said.startswith(f"unsupported: {wrong}: ")
    assert list(tmp_path.iterdir()) == []


def test_unsupported_beside_others_is_a_row(tmp_path):
    beside = fastloop("-m", "device=cpu,cuda:7", *QUICK, cwd=tmp_path)
    assert beside.returncode == 0
    assert "unsupported: device=cuda:7" in beside.stdout
    assert sorted(result.status for result in results(tmp_path)) == ["FAILED", "FINISHED"]


@pytest.mark.parametrize("loader", ["np_memmap", "tensorclass"])
def test_a_loader_over_a_store_that_it_can_not_read_is_unsupported(tmp_path, loader):
    other = {"np_memmap": "tensordict", "tensorclass": "npy"}[loader]
    done = fastloop(f"loader={loader}", f"store@loader.store={other}", *QUICK, cwd=tmp_path)
    assert refused(done).startswith("unsupported: rows ")


def test_a_launcher_that_runs_jobs_beside_each_other_is_refused(tmp_path):
    beside = ("-m", "loader=raw,preload", "hydra/launcher=joblib", *QUICK)
    said = refused(fastloop(*beside, cwd=tmp_path))
    assert said.startswith("hydra/launcher=joblib: it runs jobs beside each other")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["a file", "no folder"])
def test_outputs_that_can_not_be_written_are_named(tmp_path, where):
    path = tmp_path / "file" if where == "a file" else Path("/proc/none")
    (tmp_path / "file").write_text("")
    said = refused(fastloop(*QUICK, cwd=tmp_path, FASTLOOP_OUTPUTS=str(path)))
    assert said.startswith("the outputs folder (FASTLOOP_OUTPUTS): ")
    assert str(path) in said


def test_a_root_that_can_not_be_written_is_named(tmp_path):
    said = refused(fastloop(*QUICK, "dataset.root=/proc/none", cwd=tmp_path))
    assert said.startswith("dataset.root=/proc/none: ")


@pytest.mark.parametrize("download", ["false", "true"])
def test_without_fashion_mnist_it_says_which_files_belong_where(tmp_path, download):
    """The network refuses: nothing listens at the proxy."""
    done = fastloop(
        *("dataset=fashion_mnist", f"dataset.download={download}", "dataset.root=data"),
        cwd=tmp_path,
        http_proxy="http://127.0.0.1:9",
    )
    said = refused(done)
    assert "put {train,t10k}-{images-idx3,labels-idx1}-ubyte into data/FashionMNIST/raw" in said
    assert "dataset=digits, which needs no download" in said


def test_a_network_that_swallows_packets_is_not_waited_for_without_end(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        port = silent.getsockname()[1]
        done = fastloop(
            *("dataset=fashion_mnist", "dataset.root=data", "dataset.download_timeout_s=0.5"),
            cwd=tmp_path,
            http_proxy=f"http://127.0.0.1:{port}",
        )
    assert "FashionMNIST is not there (timed out)" in refused(done)


@pytest.mark.parametrize("harm", ["empty", "truncated", "foreign"])
@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
def test_a_harmed_idx_file_is_named(tmp_path, fashion_root, harm, kind):
    shutil.copytree(fashion_root / "FashionMNIST", tmp_path / "FashionMNIST")
    path = tmp_path / "FashionMNIST" / "raw" / f"train-{kind}-ubyte"
    path.chmod(0o644)
    whole = path.read_bytes()
    path.write_bytes(
        {"empty": b"", "truncated": whole[: len(whole) // 2], "foreign": b"GIF89a" * 500}[harm]
    )
    done = fastloop("dataset=fashion_mnist", f"dataset.root={tmp_path}", cwd=tmp_path)
    assert path.name in refused(done)


def npz(path: Path, **arrays: object) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: np.asarray(value) for name, value in arrays.items()})


@pytest.mark.parametrize(
    "harm", ["empty", "truncated", "foreign", "other keys", "pickled objects", "lengths"]
)
def test_a_harmed_npz_file_is_named(tmp_path, harm):
    path = tmp_path / "mydataset-203x5x3.npz"
    npz(path, data=np.zeros((203, 5, 3), np.float32), targets=np.zeros(203, np.int64))
    whole = path.read_bytes()
    if harm == "other keys":
        npz(path, x=[1], y=[2])
    elif harm == "pickled objects":
        npz(path, data=np.array([{}] * 203, object), targets=[0] * 203)
    elif harm == "lengths":
        npz(path, data=np.zeros((203, 5, 3)), targets=[0] * 200)
    else:
        foreign = gzip.compress(b"no npz")
        path.write_bytes({"empty": b"", "truncated": whole[:500], "foreign": foreign}[harm])
    said = refused(fastloop(*QUICK, f"dataset.root={tmp_path}", cwd=tmp_path))
    assert str(path) in said


def test_a_disk_that_fills_while_a_store_is_written_leaves_no_part_of_it(tmp_path, small_disk):
    done = fastloop(
        *("loader=np_memmap", f"loader.store.root={small_disk}", *QUICK, "dataset.count=200000"),
        cwd=tmp_path,
    )
    assert f"No space left on device: '{small_disk}/mydataset-" in refused(done)
    assert [path.name for path in small_disk.iterdir() if not path.name.endswith(".lock")] == []


def test_a_disk_that_is_full_from_the_beginning(tmp_path, small_disk):
    fill(small_disk)
    done = fastloop("trials=1", cwd=tmp_path, FASTLOOP_OUTPUTS=str(small_disk))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
