"""write_store and open_store: whole or not there, the same data, in bounded memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from fastloop import FastLoader, open_store, stored, write_store
from fastloop.types import BadData, Unsupported


class Squares(Dataset):
    def __init__(self, count: int, add: int = 0, fails: BaseException | None = None) -> None:
        self.count, self.add, self.fails = count, add, fails

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if self.fails and index == self.count - 1:
            raise self.fails
        return {"x": torch.full((3, 2), index + self.add), "more": (np.float32(index), index**2)}


class Stream(IterableDataset):
    def __init__(self, dataset) -> None:
        self.dataset = dataset

    def __iter__(self):
        return (self.dataset[index] for index in range(len(self.dataset)))


def leaves(tree) -> list[torch.Tensor]:
    found = torch.utils._pytree.tree_leaves(tree)
    return [torch.tensor(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in found]


def whole(dataset):
    return default_collate([dataset[index] for index in range(len(dataset))])


def check(store, wanted) -> None:
    structure = torch.utils._pytree.tree_structure
    assert structure(store) == structure(wanted)
    for found, one in zip(leaves(store), leaves(wanted), strict=True):
        assert found.dtype == one.dtype
        assert torch.equal(found, one)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(stored, "CHUNK_BYTES", 200)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
@pytest.mark.parametrize("kind", ["map-style", "iterable", "generator", "tree", "workers"])
def test_what_was_written_is_what_fastloader_delivers(tmp_path, small_chunks, kind, count):
    dataset, root = Squares(count), tmp_path / "deep" / "store"
    given_ = {"iterable": Stream(dataset), "tree": whole(dataset)}
    given_["generator"] = (dataset[index] for index in range(count))
    workers = 2 if kind == "workers" else 0
    assert write_store(given_.get(kind, dataset), root, num_workers=workers) == root
    check(open_store(root), whole(dataset))
    batches = list(FastLoader(open_store(str(root)), 9))
    check(batches[0], whole(Squares(min(count, 9))))
    assert sum(len(batch["x"]) for batch in batches) == count
    assert {path.name for path in root.parent.iterdir()} == {"store", ".store.lock"}


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(1, 40),
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([np.uint8, np.bool_, np.float16, np.int64, np.uint16, np.complex64]),
)
def test_any_dtype_and_shape(tmp_path_factory, count, shape, dtype):
    root = tmp_path_factory.mktemp("any") / "store"
    rows = np.random.default_rng(0).integers(2, size=(count, *shape)).astype(dtype)
    write_store([rows, rows.T.copy().T], root)
    check(open_store(root), [torch.from_numpy(rows)] * 2)


def test_a_tensor_dataset_is_its_tensors(tmp_path):
    pair = torch.rand(30, 4), torch.arange(30)
    write_store(TensorDataset(*pair), tmp_path / "store")
    check(open_store(tmp_path / "store"), list(pair))


def test_the_same_data_is_left_as_it_is_and_other_data_is_refused_or_replaces_it(tmp_path):
    root = tmp_path / "store"
    write_store(Squares(50), root)
    before = (root / "0.npy").stat().st_ino
    assert write_store(Squares(50), root) == root
    assert write_store(whole(Squares(50)), root) == root
    assert (root / "0.npy").stat().st_ino == before
    others = [Squares(51), Squares(50, add=1), torch.arange(50), Stream(Squares(50))]
    for other in others:
        with pytest.raises(FileExistsError, match=r"a store of other data .*overwrite=True"):
            write_store(other, root)
        check(open_store(root), whole(Squares(50)))
    write_store(torch.arange(5), root, overwrite=True)
    check(open_store(root), torch.arange(5))
    assert len(list(root.iterdir())) == 2  # nothing is left of the other's leaves


def test_a_folder_that_is_no_store_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="this is no store"):
            write_store(Squares(5), tmp_path / "mine", overwrite=overwrite)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"
    with pytest.raises(FileNotFoundError, match="no store is here, see write_store"):
        open_store(tmp_path / "mine")


class Uneven(Squares):
    def __getitem__(self, index: int):
        return torch.zeros(2 if index < 70 else 3)


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (Squares(90, fails=ZeroDivisionError("no")), BadData, "sample 89: ZeroDivisionError: no"),
        (Stream(Squares(90, fails=ZeroDivisionError("no"))), ZeroDivisionError, "no"),
        (Squares(90, fails=KeyboardInterrupt("stop")), KeyboardInterrupt, "stop"),
        (Uneven(90), BadData, "samples differ"),
        (Stream(Uneven(90)), BadData, "samples differ"),
        (Squares(0), ValueError, "no samples"),
        ([], ValueError, "no samples"),
        (torch.zeros(3, dtype=torch.bfloat16), Unsupported, "bfloat16"),
        ([torch.zeros(3), torch.zeros(4)], ValueError, "one length"),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_half_written_stays(tmp_path, small_chunks, dataset, error, message, overwrite):
    root = tmp_path / "store"
    if overwrite:
        write_store(torch.arange(3), root)
    with pytest.raises(error, match=message):
        write_store(dataset, root, overwrite=overwrite)
    assert {path.name for path in tmp_path.iterdir()} - {".store.lock"} == {"store"} - (
        set() if overwrite else {"store"}
    )
    if overwrite:
        check(open_store(root), torch.arange(3))


def test_a_full_disk_leaves_nothing(small_disk):
    with pytest.raises(OSError, match=r"(?i)no space .*store"):
        write_store(np.zeros((5000, 1000)), small_disk / "store")
    assert {path.name for path in small_disk.iterdir()} <= {".store.lock"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_writer_leaves_no_store_and_the_next_one_writes_it(tmp_path, number):
    program = tmp_path / "writes.py"
    program.write_text(
        "import signal, sys, time, fastloop\n"
        # who was started in the background of a shell ignores it
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def samples():\n"
        "    yield from range(5000)\n"
        "    print('written', flush=True)\n"
        "    time.sleep(600)\n"
        "fastloop.write_store(samples(), sys.argv[1])\n"
    )
    root = tmp_path / "store"
    command = [sys.executable, program, root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as writer:
        assert writer.stdout.readline() == b"written\n"
        assert not root.exists()
        writer.send_signal(number)
        assert writer.wait() != 0
    assert not root.exists()
    assert (tmp_path / ".store.partial").exists() == (number == signal.SIGKILL)
    write_store(np.arange(4), root)
    check(open_store(root), torch.arange(4))
    assert not (tmp_path / ".store.partial").exists()


def test_two_writers_at_once_write_one_after_the_other(tmp_path):
    root, errors = tmp_path / "store", []

    def write() -> None:
        try:
            write_store(Squares(3000), root)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not errors
    check(open_store(root), whole(Squares(3000)))


def test_memory_is_bounded_while_writing(tmp_path):
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
