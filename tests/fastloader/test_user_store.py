"""write_store and open_store: complete stores or none, equal data, bounded memory."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import fork_server
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from fastloop import FastLoader, open_store, write_store
from fastloop.core.types import BadData, Unsupported
from fastloop.data import chunked_reader
from fastloop.fastloader.columns.column import ColumnList


class SquaresDataset(Dataset):
    def __init__(self, count: int, add: int = 0, fails: BaseException | None = None) -> None:
        self.count, self.add, self.fails = count, add, fails

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if self.fails and index == self.count - 1:
            raise self.fails
        return {"x": torch.full((3, 2), index + self.add), "more": (np.float32(index), index**2)}


class StreamDataset(IterableDataset):
    def __init__(self, dataset) -> None:
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


def leaves(tree) -> list[torch.Tensor]:
    values = torch.utils._pytree.tree_leaves(tree)
    return [torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in values]


def collate_all(dataset):
    return default_collate([dataset[index] for index in range(len(dataset))])


def assert_equal_store(store, expected) -> None:
    structure = torch.utils._pytree.tree_structure
    assert structure(list(store) if type(store) is ColumnList else store) == structure(expected)
    for leaf, expected_leaf in zip(leaves(store), leaves(expected), strict=True):
        assert leaf.dtype == expected_leaf.dtype
        assert torch.equal(leaf, expected_leaf)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunked_reader, "CHUNK_BYTES", 200)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("kind", ["map-style", "iterable", "generator", "tree", "workers"])
def test_fastloader_delivers_the_samples_written_to_a_store(tmp_path, small_chunks, kind, count):
    dataset, root = SquaresDataset(count), tmp_path / "deep" / "store"
    sources = {"iterable": StreamDataset(dataset), "tree": collate_all(dataset)}
    sources["generator"] = (dataset[index] for index in range(count))
    workers = 2 if kind == "workers" else 0
    assert write_store(sources.get(kind, dataset), root, num_workers=workers) == root
    assert_equal_store(open_store(root), collate_all(dataset))
    batches = list(FastLoader(open_store(str(root)), 9))
    assert_equal_store(batches[0], collate_all(SquaresDataset(min(count, 9))))
    assert sum(len(batch["x"]) for batch in batches) == count
    assert {path.name for path in root.parent.iterdir()} == {"store", ".store.lock"}


@given(
    count=st.integers(1, 40),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([np.uint8, np.bool_, np.float16, np.int64, np.uint16, np.complex64]),
)
def test_store_keeps_any_dtype_and_shape(tmp_path_factory, count, shape, dtype):
    root = tmp_path_factory.mktemp("any") / "store"
    rows = np.random.default_rng(0).integers(2, size=(count, *shape)).astype(dtype)
    write_store((rows, rows.T.copy().T), root)
    assert_equal_store(open_store(root), (torch.from_numpy(rows),) * 2)


def test_store_of_a_tensor_dataset_holds_its_tensors(tmp_path):
    pair = torch.rand(30, 4), torch.arange(30)
    write_store(TensorDataset(*pair), tmp_path / "store")
    assert_equal_store(open_store(tmp_path / "store"), list(pair))


def test_store_of_a_list_holds_its_samples(tmp_path):
    write_store([torch.arange(3), torch.arange(3, 6)], tmp_path / "store")
    assert_equal_store(open_store(tmp_path / "store"), torch.arange(6).view(2, 3))


def test_opened_store_of_pairs_is_columns_again(tmp_path):
    rows = open_store(write_store(TensorDataset(torch.arange(30), torch.rand(30)), tmp_path / "a"))
    doubled = torch.utils._pytree.tree_map(lambda leaf: leaf * 2, rows)
    assert_equal_store(
        open_store(write_store(rows, tmp_path / "b")), [torch.from_numpy(leaf) for leaf in rows]
    )
    for source in (rows, doubled, pickle.loads(pickle.dumps(FastLoader(rows))).source):
        (batch,) = FastLoader(source, 30)
        assert type(batch) is list
        assert torch.equal(batch[0], torch.from_numpy(source[0]))


def test_write_store_keeps_equal_data_and_replaces_other_data_on_request(tmp_path):
    root = tmp_path / "store"
    write_store(SquaresDataset(50), root)
    before = (root / "0.npy").stat().st_ino
    assert write_store(SquaresDataset(50), root) == root
    assert write_store(collate_all(SquaresDataset(50)), root) == root
    assert (root / "0.npy").stat().st_ino == before
    others = [
        SquaresDataset(51),
        SquaresDataset(50, add=1),
        torch.arange(50),
        StreamDataset(SquaresDataset(50)),
    ]
    for other in others:
        with pytest.raises(
            FileExistsError, match=r"a store (of other data )?is here.*overwrite=True"
        ):
            write_store(other, root)
        assert_equal_store(open_store(root), collate_all(SquaresDataset(50)))
    write_store(torch.arange(5), root, overwrite=True)
    assert_equal_store(open_store(root), torch.arange(5))
    assert len(list(root.iterdir())) == 2  # the leaves of the replaced store are gone


def test_interrupted_removal_of_a_replaced_store_leaves_a_whole_one(tmp_path, monkeypatch):
    root = tmp_path / "squares"
    write_store(SquaresDataset(10), root)
    remove_tree = shutil.rmtree

    def interrupt(path, *arguments, **named):
        if not os.path.exists(path):
            return
        next(Path(path).glob("*.npy")).unlink()
        monkeypatch.setattr(shutil, "rmtree", remove_tree)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_store(SquaresDataset(12), root, overwrite=True)
    assert len(open_store(root)["x"]) in (10, 12)
    write_store(SquaresDataset(14), root, overwrite=True)
    assert len(open_store(root)["x"]) == 14
    assert {path.name for path in tmp_path.iterdir()} == {"squares", ".squares.lock"}


def test_a_store_that_a_killed_writer_has_put_aside_is_put_back(tmp_path):
    root = tmp_path / "squares"
    write_store(SquaresDataset(10), root)
    root.rename(tmp_path / ".squares.replaced")
    with pytest.raises(BadData):
        write_store(SquaresDataset(12, fails=ValueError("no")), root, overwrite=True)
    assert len(open_store(root)["x"]) == 10


def test_write_store_never_replaces_a_folder_that_is_no_store(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="not a store"):
            write_store(SquaresDataset(5), tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    with pytest.raises(FileNotFoundError, match="no store here; write_store writes one"):
        open_store(tmp_path / "mine")


class UnevenDataset(SquaresDataset):
    def __getitem__(self, index: int):
        return torch.zeros(2 if index < 70 else 3)


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            SquaresDataset(90, fails=ZeroDivisionError("no")),
            BadData,
            "sample 89: ZeroDivisionError: no",
        ),
        (StreamDataset(SquaresDataset(90, fails=ZeroDivisionError("no"))), ZeroDivisionError, "no"),
        (SquaresDataset(90, fails=KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
        (UnevenDataset(90), BadData, "samples differ"),
        (StreamDataset(UnevenDataset(90)), BadData, "samples differ"),
        (SquaresDataset(0), ValueError, "no samples"),
        ([], ValueError, "no samples"),
        (torch.zeros(3, dtype=torch.bfloat16), Unsupported, "bfloat16"),
        ((torch.zeros(3), torch.zeros(4)), ValueError, "one length"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_failed_write_leaves_the_folder_as_it_was(
    tmp_path, small_chunks, dataset, error, message, overwrite
):
    root = tmp_path / "store"
    if overwrite:
        write_store(torch.arange(3), root)
    with pytest.raises(error, match=message):
        write_store(dataset, root, overwrite=overwrite)
    assert {path.name for path in tmp_path.iterdir()} - {".store.lock"} == {"store"} - (
        set() if overwrite else {"store"}
    )
    if overwrite:
        assert_equal_store(open_store(root), torch.arange(3))


def test_write_to_a_full_disk_leaves_no_store(small_disk):
    with pytest.raises(OSError, match=r"(?i)no space .*store"):
        write_store(np.zeros((5000, 1000)), small_disk / "store")
    assert {path.name for path in small_disk.iterdir()} <= {".store.lock"}


@pytest.mark.parametrize(
    "sign", [pytest.param(signal.SIGINT, marks=pytest.mark.heavy), signal.SIGKILL]
)
def test_interrupted_write_leaves_no_store_and_the_next_succeeds(tmp_path, sign):
    program = tmp_path / "writes.py"
    program.write_text(
        "import sys, time, fastloop\n"
        "def samples():\n"
        "    yield from range(5000)\n"
        "    open('written', 'w').close()\n"
        "    time.sleep(600)\n"
        "fastloop.write_store(samples(), sys.argv[1])\n"
    )
    root = tmp_path / "store"
    writer = fork_server.start(str(program), (str(root),), tmp_path, dict(os.environ))
    writer.wait_until((tmp_path / "written").exists)
    assert not root.exists()
    writer.process.send_signal(sign)
    assert writer.wait().returncode != 0
    assert not root.exists()
    assert (tmp_path / ".store.partial").exists() == (sign == signal.SIGKILL)
    write_store(np.arange(4), root)
    assert_equal_store(open_store(root), torch.arange(4))
    assert not (tmp_path / ".store.partial").exists()


def test_concurrent_writers_of_one_store_all_succeed(tmp_path):
    root, errors = tmp_path / "store", []

    def write() -> None:
        try:
            write_store(SquaresDataset(3000), root)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert_equal_store(open_store(root), collate_all(SquaresDataset(3000)))


@pytest.mark.heavy
@pytest.mark.nightly
def test_write_store_runs_in_bounded_memory(tmp_path):
    program = (
        "import sys, resource, numpy as np, fastloop\n"
        "def samples():\n"
        "    for index in range(int(sys.argv[2])):\n"
        "        yield np.full((64, 1024), index, np.float32)\n"
        "fastloop.write_store(samples(), sys.argv[1])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    peaks = [
        float(
            subprocess.run(
                [sys.executable, "-c", program, tmp_path / count, count],
                capture_output=True,
                check=True,
                env=os.environ,
            ).stdout
        )
        for count in ("10", "1200")
    ]
    assert sum(path.stat().st_size for path in (tmp_path / "1200").iterdir()) > 300e6
    assert peaks[1] - peaks[0] < 40


FROM_STDIN = """
import sys
import fastloop
class Numbers:
    def __len__(self): return 300
    def __getitem__(self, index): return float(index), index
root = fastloop.write_store(Numbers(), sys.argv[1], num_workers=2)
print(fastloop.open_store(root)[1].tolist() == list(range(300)))
"""


@pytest.mark.slow
@pytest.mark.heavy
def test_class_of_a_program_without_a_file_is_read_by_workers(tmp_path):
    command = [sys.executable, "-", str(tmp_path / "store")]
    process = subprocess.run(command, input=FROM_STDIN, capture_output=True, text=True, check=False)
    assert (process.stdout, process.returncode) == ("True\n", 0), process.stderr


@pytest.mark.parametrize(("root", "error"), [(5, TypeError), (None, TypeError), ("", ValueError)])
def test_what_is_no_path_of_a_store_is_named(root, error):
    with pytest.raises(error, match=f"^root={root!r}: allowed is the path of a folder$"):
        write_store(torch.arange(3), root)
    with pytest.raises(error, match=f"^root={root!r}: allowed is the path of a folder$"):
        open_store(root)


def test_what_holds_no_samples_is_named(tmp_path):
    with pytest.raises(ValueError, match="dataset=int: allowed: a Dataset, an iterable of samples"):
        write_store(5, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("leaf", "error"),
    [
        (torch.tensor(1.0), ValueError),
        (np.array(1.0), ValueError),
        (np.array(["x", "y"]), Unsupported),
        (np.array([{}, {}]), Unsupported),
        (np.array(["2026-11-27"], "M8[D]"), Unsupported),
    ],
)
def test_leaf_of_a_tree_that_no_store_can_hold_is_named(tmp_path, leaf, error):
    with pytest.raises(error, match=r"dataset\['label'\] .*allowed: "):
        write_store({"x": torch.zeros(2), "label": leaf}, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
