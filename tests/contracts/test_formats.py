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
from hypothesis import given
from hypothesis import strategies as st
from options import MYDATASET, compose_job, require_library, skip_without_library
from torch.utils.data import default_collate

from fastloop.core.index_batches import epoch_indices
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import check_libraries
from fastloop.core.types import BadData, Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.data.rows_of_open_file import BatchRows
from fastloop.options.loader import tf_data
from fastloop.trial.support import check_support

COUNT = 37
DTYPES = (
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
)
KINDS = {
    "hdf5": ("loader=hdf5",),
    "hdf5, one row per chunk": ("loader=hdf5", "loader.store.chunk_rows=1"),
    "hdf5, gzip": ("loader=hdf5", "loader.store.chunk_rows=5", "loader.store.compression=gzip"),
    "hdf5, one chunk": ("loader=hdf5", "loader.store.chunk_rows=999"),
    "hdf5, lzf": ("loader=hdf5", "loader.store.compression=lzf"),
    "tfrecord": ("loader=tfrecord",),
    "tfrecord, unchecked": ("loader=tfrecord", "loader.check_crc=false"),
    "tf_data": ("loader=tf_data",),
    "zarr": ("loader=zarr",),
    "zarr, uncompressed": ("loader=zarr", "loader.store.compression=null"),
}
LIBRARIES = {"hdf5": "h5py", "tfrecord": "crc32c", "tf_data": "tensorflow", "ffcv": "ffcv"}
LIBRARIES |= {"webdataset": "webdataset", "zarr": "zarr", "parquet": "pyarrow"}
LIBRARIES |= {"hf_datasets": "datasets", "hf_iterable": "datasets"}
LIBRARIES |= {"lance": "lance", "litdata": "litdata", "mosaic_streaming": "streaming"}
ROWS = r"^(rows|loader=\w+ reads) .* use .*store@loader.store=(npy|tensordict|\w+)$"
COMMANDS = {
    "hdf5": "pip install h5py",
    "tfrecord": "pip install crc32c protobuf",
    "tf_data": "pip install tensorflow-cpu",
    "webdataset": "pip install webdataset",
    "zarr": "pip install zarr",
    "parquet": "pip install pyarrow",
    "hf_datasets": "pip install datasets",
    "hf_iterable": "pip install datasets",
    "lance": "pip install pylance",
    "litdata": "pip install litdata",
    "mosaic_streaming": "pip install mosaicml-streaming",
    "ffcv": "apt-get install .*libturbojpeg0-dev.* --no-build-isolation --no-deps ffcv",
}


def random_rows(name: str, *shape: int) -> torch.Tensor:
    """Rows of random bits of this dtype, NaNs with a payload among them."""
    dtype, generator = getattr(torch, name), torch.Generator().manual_seed(len(name))
    if name == "bool":
        return torch.randint(2, (COUNT, *shape), generator=generator).bool()
    numbers = torch.randint(256, (COUNT, *shape, dtype.itemsize), generator=generator)
    return numbers.to(torch.uint8).view(dtype).squeeze(-1)


class Leaves:
    """Samples with one leaf of each dtype, as arrays and as scalars."""

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


def leaf_bytes(tree) -> list[bytes]:
    return [leaf.contiguous().numpy().tobytes() for leaf in optree.tree_leaves(tree)]


def open_loader(job) -> None:
    """Prepare the job's data and open its loader."""
    prepared = prepare(job.dataset, job.loader.store)
    with job.loader.open(prepared, job.plan(0)):
        pass


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_store_returns_every_dtype_bit_for_bit_in_any_tree(outputs, kind, order):
    job, dataset = compose_job(*kind, f"order={order}", "batch_size=8"), Leaves()
    require_library(LIBRARIES[kind[0].removeprefix("loader=")])
    prepared = prepare(dataset, job.loader.store)
    indices = epoch_indices(job.order, COUNT, 0, 1)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        batches = list(epochs(1))
    for part, batch in zip(indices.split(8), batches, strict=True):
        wanted = default_collate([dataset.open()[index] for index in part])
        assert leaf_bytes(batch) == leaf_bytes(wanted)
        dtypes = [leaf.dtype for leaf in optree.tree_leaves(batch)]
        assert dtypes == [leaf.dtype for leaf in optree.tree_leaves(wanted)]
        assert list(batch) == ["arrays", "scalars"]
        for leaf in optree.tree_leaves(batch):
            leaf.zero_()  # the receiver may write to a batch


@pytest.fixture
def open_rows(outputs):
    """Function that returns the map-style dataset of a loader of a file, and its samples."""

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
def test_rows_are_read_by_any_indices_in_any_order_and_repeated(open_rows, loader, chunks):
    require_library(LIBRARIES[loader])
    rows, samples = open_rows(f"loader={loader}", *chunks)

    @given(st.lists(st.integers(0, len(samples) - 1), min_size=1, max_size=40))
    def check(indices):
        wanted = default_collate([samples[index] for index in indices])
        assert leaf_bytes(rows.__getitems__(indices)) == leaf_bytes(wanted)

    check()
    assert leaf_bytes(rows[7]) == leaf_bytes(optree.tree_map(torch.as_tensor, samples[7]))
    rows.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_process_opens_and_closes_only_its_own_reader():
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
        is_correct = rows[0] == 0 and rows[1] == 1 and opened == [os.getppid(), os.getpid()]
        rows.close()
        os._exit(0 if is_correct and closed == [os.getpid()] else 1)
    assert os.waitpid(child, 0)[1] == 0
    copy = pickle.loads(pickle.dumps(BatchRows(list, 3)))
    assert len(copy) == 3
    rows.close()
    assert opened == closed == [os.getpid()]


def test_store_settings_select_separate_folders(outputs):
    h5py = require_library("h5py")
    folders = {}
    for rows, compression in [(1, "null"), (16, "null"), (16, "gzip"), (999, "lzf")]:
        overrides = (f"loader.store.chunk_rows={rows}", f"loader.store.compression={compression}")
        job = compose_job("loader=hdf5", *overrides, *MYDATASET)
        folders[rows, compression] = prepare(job.dataset, job.loader.store).folder
    assert len(set(folders.values())) == 4
    for (rows, compression), folder in folders.items():
        with h5py.File(folder / "rows.h5") as file:
            assert file["0"].chunks == (min(rows, 203), 5, 3)
            assert file["0"].compression == (None if compression == "null" else compression)


def test_hdf5_rejects_chunks_that_old_versions_cannot_read(outputs):
    require_library("h5py")
    job = compose_job("loader=hdf5", f"loader.store.chunk_rows={1 << 29}", *MYDATASET)
    with pytest.raises(Unsupported, match=r"store.chunk_rows=536870912: a chunk of 30\.0 GiB"):
        prepare(job.dataset, job.loader.store)


def read_with_tfrecord_package(path: str) -> list[dict[str, bytes]]:
    return list(require_library("tfrecord").tfrecord_loader(path, None, {"0": "byte", "1": "byte"}))


@pytest.mark.heavy
def test_tfrecord_file_is_readable_by_the_tfrecord_package(outputs):
    job = compose_job("loader=tfrecord", *MYDATASET)
    path = prepare(job.dataset, job.loader.store).folder / "rows.tfrecord"
    # in a separate process: TensorFlow and the tfrecord package can't be imported together
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        records = pool.submit(read_with_tfrecord_package, str(path)).result()
    samples = job.dataset.open()
    assert len(records) == len(samples) == 203
    for index, features in enumerate(records):
        assert features["0"] == samples[index][0].numpy().tobytes()
        assert features["1"] == samples[index][1].tobytes()


def test_tfrecord_checksums_are_masked_crc32c(outputs):
    """Compare with CRC-32C computed bit by bit and TFRecord's mask, each from its definition."""

    def compute_masked_crc(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32

    assert (
        compute_masked_crc(b"123456789")
        == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) % 2**32
    )
    require_library("crc32c")
    job = compose_job("loader=tfrecord", *MYDATASET)
    data = (prepare(job.dataset, job.loader.store).folder / "rows.tfrecord").read_bytes()
    length, length_crc = struct.unpack_from("<QI", data)
    (record_crc,) = struct.unpack_from("<I", data, 12 + length)
    assert length_crc == compute_masked_crc(data[:8])
    assert record_crc == compute_masked_crc(data[12 : 12 + length])


def truncate_by_one_byte(path):
    os.truncate(path, path.stat().st_size - 1)


def replace_with_text(path):
    path.write_bytes(b"plain text\n" * 10)


def delete(path):
    path.unlink()


def replace_with_another_layout(path):
    if path.suffix == ".h5":
        sys.modules["h5py"].File(path, "w").close()
    else:
        path.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [truncate_by_one_byte, replace_with_text, delete, replace_with_another_layout]
)
@pytest.mark.parametrize(("loader", "name"), [("hdf5", "rows.h5"), ("tfrecord", "rows.tfrecord")])
def test_store_names_a_damaged_file_when_opened(outputs, loader, name, damage):
    require_library(LIBRARIES[loader])
    job = compose_job(f"loader={loader}", *MYDATASET)
    prepared = prepare(job.dataset, job.loader.store)
    damage(prepared.folder / name)
    with pytest.raises(BadData, match=str(prepared.folder)) as error:
        job.loader.open(prepared, job.plan(0)).__enter__()
    assert "\n" not in str(error.value)
    rewritten = prepare(job.dataset, job.loader.store)
    with job.loader.open(rewritten, job.plan(0)) as epochs:
        assert sum(len(targets) for _, targets in epochs(0)) == 203


@pytest.mark.parametrize(
    "offset",
    [0, 9, 40, -1],
    ids=["length", "length checksum", "content", "content checksum"],
)
def test_tfrecord_checksum_detects_a_changed_byte(outputs, offset):
    require_library("crc32c")
    job = compose_job("loader=tfrecord", *MYDATASET)
    prepared = prepare(job.dataset, job.loader.store)
    path = prepared.folder / "rows.tfrecord"
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    with (
        job.loader.open(prepared, job.plan(0)) as epochs,
        pytest.raises(BadData, match=r"rows\.tfrecord: record (0|202) "),
    ):
        list(epochs(0))
    unchecked = replace(job.loader, check_crc=False)
    with unchecked.open(prepared, job.plan(0)) as epochs:
        if offset == 0:
            with pytest.raises(BadData, match="record 0 is not where the index says"):
                list(epochs(0))
        else:
            assert sum(len(targets) for _, targets in epochs(0)) == 203


@pytest.mark.parametrize(
    "content", [b"", b"plain text\n" * 10, struct.pack("<HHIQQ", 2, 2, 8, 9, 99)]
)
def test_ffcv_store_names_a_foreign_beton_file(tmp_path, content):
    store = compose_job("loader=ffcv").loader.store
    with pytest.raises(BadData, match=r"rows\.beton"):
        store.open(tmp_path)
    (tmp_path / "rows.beton").write_bytes(content)
    with pytest.raises(BadData, match=r"rows\.beton"):
        store.open(tmp_path)


@pytest.mark.parametrize("loader", LIBRARIES)
def test_loader_without_its_library_names_the_install_command(outputs, monkeypatch, loader):
    for name in (
        LIBRARIES[loader],
        *(module for module in sys.modules if module.startswith("ffcv.")),
    ):
        monkeypatch.setitem(sys.modules, name, None)
    job = compose_job(f"loader={loader}", *MYDATASET)
    with pytest.raises(Unsupported, match=COMMANDS[loader]) as error:
        open_loader(job)
    with pytest.raises(Unsupported, match=COMMANDS[loader]):
        check_support(job)
    assert "\n" not in str(error.value)
    assert not [path for path in (outputs / "stores").iterdir() if "partial" in path.name]


@pytest.mark.parametrize("loader", LIBRARIES)
def test_loader_of_a_file_format_rejects_another_store(outputs, loader):
    store = "npy" if loader != "tf_data" else "tensordict"
    job = compose_job(f"loader={loader}", f"store@loader.store={store}", *MYDATASET)
    with pytest.raises(Unsupported, match=ROWS):
        open_loader(job)


@pytest.mark.parametrize("store", ["hdf5", "tfrecord"])
@pytest.mark.parametrize("loader", ["np_memmap", "preload", "tensorclass", "tensorclass_memmap"])
def test_loader_of_memory_maps_rejects_hdf5_and_tfrecord_stores(outputs, loader, store):
    require_library(LIBRARIES[store])
    job = compose_job(f"loader={loader}", f"store@loader.store={store}", *MYDATASET)
    with pytest.raises(Unsupported, match=ROWS):
        open_loader(job)


def test_close_on_exit_ends_generators_that_are_still_referenced():
    ended = []

    def batches(epoch):
        try:
            yield from range(3)
        finally:
            ended.append(epoch)

    with close_on_exit(batches) as epochs:
        referenced, dropped, unstarted = epochs(0), epochs(1), epochs(2)
        assert (next(referenced), next(dropped), ended) == (0, 0, [])
        del dropped
        assert ended == [1]
    assert ended == [1, 0]
    assert list(referenced) == list(unstarted) == []


@pytest.mark.heavy
def test_workers_of_every_epoch_that_is_still_referenced_end_with_the_loader(prepared_job):
    job, prepared = prepared_job("loader=raw", "num_workers=1", *MYDATASET)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        iterators = [iter(epochs(epoch)) for epoch in range(2)]
        workers = [worker for iterator in iterators for worker in iterator._workers]
        assert [worker.is_alive() for worker in workers] == [True, True]
    assert [worker.is_alive() for worker in workers] == [False, False]


@pytest.mark.heavy
@pytest.mark.xdist_group("tf_data")
@pytest.mark.parametrize("dtype", DTYPES)
def test_tf_data_passes_tensors_to_torch_without_a_copy(dtype):
    tf = require_library("tensorflow")
    rows = random_rows(dtype, 3, 2)
    source = tf_data._read([rows.numpy()])
    leaf = tf.gather(tf.constant(rows.numpy()), [7, 0])
    tensor = source._to_torch(leaf, rows.dtype)
    assert tensor.data_ptr() == np.asarray(memoryview(leaf)).ctypes.data
    assert leaf_bytes(tensor) == leaf_bytes(rows[[7, 0]])


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
def test_tensorflow_prints_nothing():
    require_library("tensorflow")
    program = "from fastloop.options.loader import tf_data; tf_data._tensorflow().constant(1) + 1"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (process.stdout, process.stderr) == ("", "")


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
    """Job of loader=ffcv; the test is skipped without its library."""
    job = compose_job("loader=ffcv", "batch_size=8")
    try:
        check_libraries(job.loader)
    except Unsupported as error:
        skip_without_library(error)
    return job


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int64", "float64", "complex64", "bool"])
def test_ffcv_returns_every_supported_dtype_bit_for_bit(outputs, dtype):
    job, dataset = ffcv_job(), Pairs(dtype)
    prepared = prepare(dataset, job.loader.store)
    indices = epoch_indices(job.order, COUNT, 0, 1)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        data, labels = map(torch.cat, zip(*epochs(1), strict=True))
    assert data.dtype == dataset.rows.dtype
    assert leaf_bytes(data) == leaf_bytes(dataset.rows[indices])
    assert labels.tolist() == indices.tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ffcv_rejects_other_dtypes_before_writing(outputs, dtype):
    job = ffcv_job()
    with pytest.raises(Unsupported, match=f"^store=ffcv can't hold {dtype}; store=torch_storage"):
        prepare(Pairs(dtype), job.loader.store)
    assert not list((outputs / "stores").rglob("*.beton"))


def test_ffcv_raises_an_error_of_its_thread_in_the_epoch(prepared_job, monkeypatch):
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


@pytest.mark.heavy
@pytest.mark.xdist_group("litdata")
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_litdata_decodes_each_sample_once_an_epoch(outputs, monkeypatch, order):
    """Its default decodes the 32 neighbours of a sample, in chunks that are shuffled by 256."""
    require_library("litdata")
    serializers = require_library("litdata.streaming.serializers")
    decoded = []
    deserialize = serializers.TensorSerializer.deserialize
    monkeypatch.setattr(
        serializers.TensorSerializer,
        "deserialize",
        lambda self, data: decoded.append(1) or deserialize(self, data),
    )
    # Sixteen chunks of 600 samples, each of a tensor and a number.
    data = ("dataset=mydataset", "dataset.count=9600", "dataset.shape=[2]", "batch_size=64")
    job = compose_job("loader=litdata", f"order={order}", *data)
    prepared = prepare(job.dataset, job.loader.store)
    with job.loader.open(prepared, job.plan(0)) as epochs:
        for epoch in (0, 1):
            decoded.clear()
            assert sum(len(labels) for _, labels in epochs(epoch)) == 9600
            assert len(decoded) == 9600
