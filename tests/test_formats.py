"""HDF5, TFRecord, FFCV and tf.data: known answers, foreign files, absent libraries."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing import get_context
from operator import itemgetter

import numpy as np
import optree
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from options import MYDATASET, compose_job, library, skip_without_its_library
from torch.utils.data import default_collate

from fastloop.batch_rows import BatchRows
from fastloop.generators import closed_at_the_end
from fastloop.job import check_support
from fastloop.loaders import tf_data
from fastloop.optional import check_libraries
from fastloop.plans import epoch_indices
from fastloop.prepared import prepare
from fastloop.types import BadData, Unsupported

COUNT = 37
DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
)
KINDS = {
    "hdf5": ("loader=hdf5",),
    "hdf5, a row a chunk": ("loader=hdf5", "loader.store.chunk_rows=1"),
    "hdf5, gzip": ("loader=hdf5", "loader.store.chunk_rows=5", "loader.store.compression=gzip"),
    "hdf5, one chunk": ("loader=hdf5", "loader.store.chunk_rows=999"),
    "hdf5, lzf": ("loader=hdf5", "loader.store.compression=lzf"),
    "tfrecord": ("loader=tfrecord",),
    "tfrecord, unchecked": ("loader=tfrecord", "loader.check_crc=false"),
    "tf_data": ("loader=tf_data",),
}
LIBRARIES = {"hdf5": "h5py", "tfrecord": "crc32c", "tf_data": "tensorflow", "ffcv": "ffcv"}
ROWS = r"^rows .*store=(npy|tensordict|hdf5|tfrecord|ffcv) gives"
COMMANDS = {
    "hdf5": "pip install h5py",
    "tfrecord": "pip install crc32c protobuf",
    "tf_data": "pip install tensorflow-cpu",
    "ffcv": "apt-get install .*libturbojpeg0-dev.* --no-build-isolation --no-deps ffcv",
}


def random_rows(name: str, *shape: int) -> torch.Tensor:
    """Any bits that the dtype knows, among them NaNs with a payload."""
    dtype, generator = getattr(torch, name), torch.Generator().manual_seed(len(name))
    if name == "bool":
        return torch.randint(2, (COUNT, *shape), generator=generator).bool()
    numbers = torch.randint(256, (COUNT, *shape, dtype.itemsize), generator=generator)
    return numbers.to(torch.uint8).view(dtype).squeeze(-1)


class Leaves:
    """A tree with a leaf of each dtype, as scalars and as arrays."""

    label, num_classes, uint8_scale = "leaves", None, None

    def __init__(self) -> None:
        self.rows = {
            "arrays": [random_rows(name, 3, 2) for name in DTYPES],
            "scalars": tuple(random_rows(name) for name in DTYPES),
        }

    def fetch(self):
        return "leaves-1"

    def open(self):
        return [optree.tree_map(itemgetter(index), self.rows) for index in range(COUNT)]


def the_bytes(tree) -> list[bytes]:
    return [leaf.contiguous().numpy().tobytes() for leaf in optree.tree_leaves(tree)]


def opened(job) -> None:
    """Prepare the job's data and open its loader."""
    prepared = prepare(job.dataset, job.loader.store)
    with job.loader.open(prepared, job.plan(0)):
        pass


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_every_dtype_comes_back_bit_for_bit_in_any_tree(outputs, kind, order):
    job, dataset = compose_job(*kind, f"order={order}", "batch_size=8"), Leaves()
    library(LIBRARIES[kind[0].removeprefix("loader=")])
    prepared = prepare(dataset, job.loader.store)
    indices = epoch_indices(job.order, COUNT, 0, 1)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(1))
    for chosen, batch in zip(indices.split(8), batches, strict=True):
        wanted = default_collate([dataset.open()[index] for index in chosen])
        assert the_bytes(batch) == the_bytes(wanted)
        found = [leaf.dtype for leaf in optree.tree_leaves(batch)]
        assert found == [leaf.dtype for leaf in optree.tree_leaves(wanted)]
        assert list(batch) == ["arrays", "scalars"]
        for leaf in optree.tree_leaves(batch):
            leaf.zero_()  # a batch is the receiver's own, to write to


@pytest.fixture
def opened_rows(outputs):
    """The map-style dataset below a loader of a file, and the rows that it holds."""

    def make(*overrides: str) -> tuple[BatchRows, list]:
        job = compose_job(*overrides, *MYDATASET)
        prepared = prepare(job.dataset, job.loader.store)
        with job.loader.open(prepared, job.plan(0)) as epochs:
            rows = pickle.loads(pickle.dumps(epochs(0).loader.dataset))
        samples = job.dataset.open()
        return rows, [samples[index] for index in range(len(samples))]

    return make


@pytest.mark.parametrize(
    ("loader", "chunks"),
    [
        ("hdf5", ()),
        ("hdf5", ("loader.store.chunk_rows=1",)),
        ("hdf5", ("loader.store.chunk_rows=7",)),
        ("tfrecord", ()),
    ],
)
def test_any_indices_in_any_order_also_twice(opened_rows, loader, chunks):
    library(LIBRARIES[loader])
    rows, samples = opened_rows(f"loader={loader}", *chunks)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=40))
    def check(indices):
        wanted = default_collate([samples[index] for index in indices])
        assert the_bytes(rows.__getitems__(indices)) == the_bytes(wanted)

    check()
    assert the_bytes(rows[7]) == the_bytes(optree.tree_map(torch.as_tensor, samples[7]))
    rows.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_opens_a_file_of_its_own_and_closes_only_that():
    opened, closed = [], []

    class Reader:
        def __init__(self):
            opened.append(os.getpid())

        def read(self, indices):
            return torch.tensor(indices)

        def close(self):
            closed.append(os.getpid())

    rows = BatchRows(Reader, 3)
    assert rows.__getitems__([2, 1]).tolist() == [2, 1]
    child = os.fork()
    if not child:
        same = rows[0] == 0 and rows[1] == 1 and opened == [os.getppid(), os.getpid()]
        rows.close()
        os._exit(0 if same and closed == [os.getpid()] else 1)
    assert os.waitpid(child, 0)[1] == 0
    forgotten = pickle.loads(pickle.dumps(BatchRows(list, 3)))
    assert len(forgotten) == 3
    rows.close()
    assert opened == closed == [os.getpid()]


def test_two_settings_of_a_store_are_two_stores(outputs):
    h5py = library("h5py")
    folders = {}
    for rows, compression in [(1, "null"), (16, "null"), (16, "gzip"), (999, "lzf")]:
        asked = (f"loader.store.chunk_rows={rows}", f"loader.store.compression={compression}")
        job = compose_job("loader=hdf5", *asked, *MYDATASET)
        folders[rows, compression] = prepare(job.dataset, job.loader.store).folder
    assert len(set(folders.values())) == 4
    for (rows, compression), folder in folders.items():
        with h5py.File(folder / "rows.h5") as file:
            assert file["0"].chunks == (min(rows, 203), 5, 3)
            assert file["0"].compression == (None if compression == "null" else compression)


def test_chunks_that_old_hdf5_can_not_read_are_unsupported(outputs):
    library("h5py")
    job = compose_job("loader=hdf5", f"loader.store.chunk_rows={1 << 29}", *MYDATASET)
    with pytest.raises(Unsupported, match=r"store.chunk_rows=536870912: a chunk of 30\.0 GiB"):
        prepare(job.dataset, job.loader.store)


def read_by_another(path: str) -> list[dict[str, bytes]]:
    return list(library("tfrecord").tfrecord_loader(path, None, {"0": "byte", "1": "byte"}))


def test_a_tfrecord_file_is_what_others_read(outputs):
    job = compose_job("loader=tfrecord", *MYDATASET)
    path = prepare(job.dataset, job.loader.store).folder / "rows.tfrecord"
    # in a process of its own: TensorFlow and the tfrecord package can't be imported in one
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(read_by_another, str(path)).result()
    samples = job.dataset.open()
    assert len(found) == len(samples) == 203
    for index, features in enumerate(found):
        assert features["0"] == samples[index][0].numpy().tobytes()
        assert features["1"] == samples[index][1].tobytes()


def test_a_tfrecords_checksums_are_crc32c_masked(outputs):
    """By the definition of CRC-32C, bit by bit, and of TFRecord's mask."""

    def masked_crc(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32

    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
    library("crc32c")
    job = compose_job("loader=tfrecord", *MYDATASET)
    data = (prepare(job.dataset, job.loader.store).folder / "rows.tfrecord").read_bytes()
    length, of_length = struct.unpack_from("<QI", data)
    (of_record,) = struct.unpack_from("<I", data, 12 + length)
    assert of_length == masked_crc(data[:8])
    assert of_record == masked_crc(data[12 : 12 + length])


def cut_off(path):
    os.truncate(path, path.stat().st_size - 1)


def foreign(path):
    path.write_bytes(b"plain text\n" * 10)


def gone(path):
    path.unlink()


def of_another_layout(path):
    if path.suffix == ".h5":
        sys.modules["h5py"].File(path, "w").close()
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize("harm", [cut_off, foreign, gone, of_another_layout])
@pytest.mark.parametrize(("loader", "name"), [("hdf5", "rows.h5"), ("tfrecord", "rows.tfrecord")])
def test_a_file_that_is_not_the_stores_is_named_when_it_is_opened(outputs, loader, name, harm):
    library(LIBRARIES[loader])
    job = compose_job(f"loader={loader}", *MYDATASET)
    prepared = prepare(job.dataset, job.loader.store)
    harm(prepared.folder / name)
    with pytest.raises(BadData, match=str(prepared.folder)) as said:
        job.loader.open(prepared, job.plan(0)).__enter__()
    assert "\n" not in str(said.value)
    again = prepare(job.dataset, job.loader.store)
    with job.loader.open(again, job.plan(0)) as epochs:
        assert sum(len(targets) for _, targets in epochs(0)) == 203


@pytest.mark.parametrize(
    "place", [0, 9, 40, -1], ids=["length", "its sum", "content", "the sum of it"]
)
def test_a_changed_byte_of_a_tfrecord_is_seen_by_its_checksum(outputs, place):
    library("crc32c")
    job = compose_job("loader=tfrecord", *MYDATASET)
    prepared = prepare(job.dataset, job.loader.store)
    path = prepared.folder / "rows.tfrecord"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with (
        job.loader.open(prepared, job.plan(0)) as epochs,
        pytest.raises(BadData, match=r"rows\.tfrecord: record (0|202) "),
    ):
        list(epochs(0))
    unchecked = replace(job.loader, check_crc=False)
    with unchecked.open(prepared, job.plan(0)) as epochs:
        if place == 0:
            with pytest.raises(BadData, match="record 0 is not where the index says"):
                list(epochs(0))
        else:
            assert sum(len(targets) for _, targets in epochs(0)) == 203


@pytest.mark.parametrize(
    "content", [b"", b"plain text\n" * 10, struct.pack("<HHIQQ", 2, 2, 8, 9, 99)]
)
def test_a_foreign_beton_file_is_named(tmp_path, content):
    store = compose_job("loader=ffcv").loader.store
    with pytest.raises(BadData, match=r"rows\.beton"):
        store.open(tmp_path)
    (tmp_path / "rows.beton").write_bytes(content)
    with pytest.raises(BadData, match=r"rows\.beton"):
        store.open(tmp_path)


@pytest.mark.parametrize("loader", LIBRARIES)
def test_without_its_library_a_loader_is_unsupported_and_says_what_installs_it(
    outputs, monkeypatch, loader
):
    for name in (LIBRARIES[loader], *(one for one in sys.modules if one.startswith("ffcv."))):
        monkeypatch.setitem(sys.modules, name, None)
    job = compose_job(f"loader={loader}", *MYDATASET)
    with pytest.raises(Unsupported, match=COMMANDS[loader]) as said:
        opened(job)
    with pytest.raises(Unsupported, match=COMMANDS[loader]):
        check_support(job)
    assert "\n" not in str(said.value)
    assert not [path for path in (outputs / "stores").iterdir() if "partial" in path.name]


@pytest.mark.parametrize("loader", LIBRARIES)
def test_over_another_store_it_is_unsupported(outputs, loader):
    other = "npy" if loader != "tf_data" else "tensordict"
    job = compose_job(f"loader={loader}", f"store@loader.store={other}", *MYDATASET)
    with pytest.raises(Unsupported, match=ROWS):
        opened(job)


@pytest.mark.parametrize("store", ["hdf5", "tfrecord"])
@pytest.mark.parametrize("loader", ["np_memmap", "preload", "tensorclass", "tensorclass_memmap"])
def test_other_loaders_say_that_they_do_not_read_these_stores(outputs, loader, store):
    library(LIBRARIES[store])
    job = compose_job(f"loader={loader}", f"store@loader.store={store}", *MYDATASET)
    with pytest.raises(Unsupported, match=ROWS):
        opened(job)


def test_a_generator_that_is_still_held_ends_with_its_context():
    ended = []

    def batches(epoch):
        try:
            yield from range(3)
        finally:
            ended.append(epoch)

    with closed_at_the_end(batches) as epochs:
        held, left, never = epochs(0), epochs(1), epochs(2)
        assert (next(held), next(left), ended) == (0, 0, [])
        del left
        assert ended == [1]
    assert ended == [1, 0]
    assert list(held) == list(never) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensorflow_hands_torch_its_memory_without_a_copy(dtype):
    tf = library("tensorflow")
    rows = random_rows(dtype, 3, 2)
    source = tf_data._read([rows.numpy()])
    leaf = tf.gather(tf.constant(rows.numpy()), [7, 0])
    found = source._to_torch(leaf, rows.dtype)
    assert found.data_ptr() == np.asarray(memoryview(leaf)).ctypes.data
    assert the_bytes(found) == the_bytes(rows[[7, 0]])


@pytest.mark.slow
def test_tensorflow_says_nothing_on_the_terminal():
    library("tensorflow")
    program = "from fastloop.loaders import tf_data; tf_data._tensorflow().constant(1) + 1"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


class Pairs:
    """(array, int) samples of a dtype."""

    num_classes, uint8_scale = None, None

    def __init__(self, dtype: str) -> None:
        self.label, self.rows = dtype, random_rows(dtype, 3, 2)

    def fetch(self):
        return f"pairs-{self.label}"

    def open(self):
        return [(self.rows[index], index) for index in range(COUNT)]


def ffcv_job():
    """A job whose loader and store can be had."""
    job = compose_job("loader=ffcv", "batch_size=8")
    try:
        check_libraries(job.loader)
    except Unsupported as why:
        skip_without_its_library(why)
    return job


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", "float64", "complex64", "bool"])
def test_ffcv_brings_every_dtype_back_bit_for_bit_that_it_knows(outputs, dtype):
    job, dataset = ffcv_job(), Pairs(dtype)
    prepared = prepare(dataset, job.loader.store)
    indices = epoch_indices(job.order, COUNT, 0, 1)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        data, labels = map(torch.cat, zip(*epochs(1), strict=True))
    assert data.dtype == dataset.rows.dtype
    assert the_bytes(data) == the_bytes(dataset.rows[indices])
    assert labels.tolist() == indices.tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes_are_refused_before_anything_is_written(outputs, dtype):
    job = ffcv_job()
    with pytest.raises(Unsupported, match=f"^store=ffcv holds no {dtype}; store=torch_storage"):
        prepare(Pairs(dtype), job.loader.store)
    assert not list((outputs / "stores").rglob("*.beton"))


def test_what_ends_ffcvs_thread_ends_the_epoch(prepared_job, monkeypatch):
    job, prepared = prepared_job("loader=ffcv", *MYDATASET)

    def fail(*_):
        raise ArithmeticError("as compiled")

    monkeypatch.setattr(
        import_module("ffcv.loader.epoch_iterator").EpochIterator, "run_pipeline", fail
    )
    with (
        job.loader.open(prepared, job.plan(0)) as epochs,
        pytest.raises(ArithmeticError, match="as compiled"),
    ):
        list(epochs(0))
