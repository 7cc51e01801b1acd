"""Sources of other libraries: tables, Hugging Face's datasets, arrays in chunks, webdataset."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import torch
from options import require_library
from torch.utils.data import DataLoader

from fastloop import FastLoader
from fastloop.fastloader.columns.array import ArrayColumn


def assert_same(source, **settings) -> None:
    ours = FastLoader(source, **settings)
    assert repr(list(ours)) == repr(list(DataLoader(source, **settings)))


def column_of(loader: FastLoader, number: int = 0):
    return loader._reading.source.columns[number]


class TestArrow:
    @pytest.fixture(autouse=True)
    def arrow(self):
        self.pa = require_library("pyarrow")

    def table(self):
        lists = self.pa.FixedSizeListArray.from_arrays(self.pa.array(range(20), "int32"), 2)
        names = {"x": np.arange(10.0, dtype=np.float32), "y": np.arange(10, dtype=np.uint8)}
        flags = [number % 3 == 0 for number in range(10)]
        return self.pa.table(names | {"pair": lists, "flag": flags})

    @pytest.mark.parametrize("make", ["table", "slice", "batch", "chunks"])
    def test_table_is_read_by_columns(self, make):
        table = self.table()
        source = {
            "table": lambda: table,
            "slice": lambda: self.pa.concat_tables([table, table]).slice(10),
            "batch": lambda: table.to_batches()[0],
            "chunks": lambda: self.pa.concat_tables([table.slice(0, 3), table.slice(3)]),
        }[make]()
        loader = FastLoader(source, 4, shuffle=True)
        batches = list(loader)
        dtypes = [torch.float32, torch.uint8, torch.int32, torch.bool]
        assert [leaf.dtype for leaf in batches[0].values()] == dtypes
        order = torch.cat([batch["y"] for batch in batches]).long()
        assert sorted(order.tolist()) == list(range(10))
        pairs = torch.arange(20, dtype=torch.int32).view(10, 2)
        assert torch.equal(torch.cat([batch["pair"] for batch in batches]), pairs[order])
        assert torch.equal(torch.cat([batch["flag"] for batch in batches]), order % 3 == 0)

    def test_numbers_are_not_copied(self, tmp_path):
        import pyarrow.parquet as pq

        table = self.table()
        rows = column_of(FastLoader(table)).flat
        assert np.shares_memory(rows, table.column("x").chunk(0).to_numpy())
        pq.write_table(table, tmp_path / "file.parquet")
        read = pq.read_table(tmp_path / "file.parquet")
        assert repr(list(FastLoader(read, 3))) == repr(list(FastLoader(table, 3)))

    @pytest.mark.parametrize(
        ("values", "message"),
        [(["a", "b"], "'bad' has values of type string"), ([1, None], "1 missing values")],
    )
    def test_column_of_other_values_is_refused_by_name(self, values, message):
        with pytest.raises(ValueError, match=message):
            FastLoader(self.pa.table({"x": [1, 2], "bad": values}))


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def hugging_face(self, monkeypatch):
        self.hf = require_library("datasets")

    def dataset(self, **others):
        columns = {"x": [0.5 * number for number in range(10)], "y": list(range(10))}
        return self.hf.Dataset.from_dict(columns | others)

    def rows(self):
        features = self.hf.Features(
            {
                "v": self.hf.List(self.hf.Value("float32"), length=2),
                "y": self.hf.Value("int64"),
            }
        )
        rows = {"v": np.arange(20.0).reshape(10, 2).tolist(), "y": list(range(10))}
        return self.hf.Dataset.from_dict(rows, features=features)

    @pytest.mark.parametrize("batch_size", [4, None])
    def test_any_format_is_read_as_dataloader_reads_it(self, batch_size):
        plain = self.dataset(text=[f"text {number}" for number in range(10)])
        for source in (
            plain,
            self.dataset(),
            self.dataset().with_format("torch"),
            self.dataset().with_format("numpy"),
            self.rows().with_format("torch"),
            plain.select([5, 2, 7]),
            plain.shuffle(seed=1),
            plain.with_format("torch", columns=["y"]),
            plain.with_transform(lambda batch: {"z": [2 * y for y in batch["y"]]}),
        ):
            assert_same(source, batch_size=batch_size)
        assert_same(plain, batch_size=3, collate_fn=list)

    @pytest.mark.parametrize("make", ["plain", "torch"])
    def test_columns_of_numbers_are_not_copied(self, make):
        source = self.dataset() if make == "plain" else self.rows().with_format("torch")
        loader = FastLoader(source, 3)
        column = column_of(loader, 1)
        assert isinstance(column, ArrayColumn)
        assert np.shares_memory(column.flat, source.data.column("y").chunk(0).to_numpy())
        assert loader.dataset is source
        assert repr(loader.collate_fn([source[1], source[2]])) == repr(
            next(iter(FastLoader(source, sampler=[1, 2], batch_size=2)))
        )

    def test_table_of_a_dataset_keeps_its_own_dtypes(self):
        features = self.hf.Features({"y": self.hf.Value("uint8")})
        source = self.hf.Dataset.from_dict({"y": range(10)}, features=features)
        (batch,) = FastLoader(source.data.table, 10)
        assert batch["y"].dtype == torch.uint8
        assert_same(source.with_format("torch"), batch_size=4)

    def test_splits_are_to_be_chosen_from(self):
        splits = self.hf.DatasetDict({"train": self.dataset()})
        with pytest.raises(ValueError, match="pass one Dataset"):
            FastLoader(splits)

    @pytest.mark.parametrize("num_workers", [None, 0, 2])
    def test_streaming(self, num_workers):
        source = self.dataset().to_iterable_dataset(num_shards=2).with_format("torch")
        settings = {"num_workers": num_workers or 0, "batch_size": 3}
        theirs = DataLoader(source, **settings)
        ours = FastLoader(source, **settings | {"num_workers": num_workers})
        assert repr(list(ours)) == repr(list(theirs))

    def test_streaming_shuffles_anew_in_each_epoch_and_resumes(self):
        def loader() -> FastLoader:
            source = self.dataset().to_iterable_dataset(num_shards=2)
            return FastLoader(source.shuffle(seed=0, buffer_size=4), 3)

        first = loader()
        epochs = [torch.cat([batch["y"] for batch in first]).tolist() for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
        running = iter(first)
        next(running)
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
        assert resumed.epoch == 2
        assert len(list(resumed)) >= 1

    def test_streaming_without_a_buffer_resumes_exactly(self):
        source = self.dataset().to_iterable_dataset(num_shards=2)
        loader = FastLoader(source, 3)
        running = iter(loader)
        next(running)
        state = loader.state_dict()
        assert "dataset" in state
        rest = repr(list(running))
        resumed = FastLoader(self.dataset().to_iterable_dataset(num_shards=2), 3)
        resumed.load_state_dict(state)
        assert repr(list(resumed)) == rest

    def test_split_by_node_is_sharded(self):
        from datasets.distributed import split_dataset_by_node

        source = self.dataset().to_iterable_dataset(num_shards=2)
        parts = [
            torch.cat([batch["y"] for batch in FastLoader(part, 2)]).tolist()
            for part in (split_dataset_by_node(source, rank, 2) for rank in range(2))
        ]
        assert sorted(parts[0] + parts[1]) == list(range(10))


@pytest.mark.parametrize("library", ["zarr", "h5py"])
class TestChunkedArrays:
    @pytest.fixture
    def arrays(self, library, tmp_path):
        module = require_library(library)
        rows, labels = np.random.default_rng(0).random((20, 3, 2), np.float32), np.arange(20)
        if library == "h5py":
            with module.File(tmp_path / "file.h5", "w") as file:
                file.create_dataset("x", data=rows, chunks=(6, 3, 2))
                file["y"] = labels
                yield file
        else:
            group = module.create_group(tmp_path / "file.zarr")
            for name, values, chunks in (("x", rows, (6, 3, 2)), ("y", labels, (5,))):
                group.create_array(name, data=values, chunks=chunks)
            yield group

    def test_trees_of_arrays(self, arrays):
        rows, labels = arrays["x"][:], arrays["y"][:]
        trees = ((arrays["x"], arrays["y"]), {"x": arrays["x"], "y": arrays["y"]}, arrays)
        for tree, plain in zip(
            trees, ((rows, labels), {"x": rows, "y": labels}, {"x": rows, "y": labels}), strict=True
        ):
            for settings in ({"batch_size": 6}, {"batch_size": 6, "shuffle": True, "seed": 0}):
                ours, expected = FastLoader(tree, **settings), FastLoader(plain, **settings)
                for batch, other in zip(ours, expected, strict=True):
                    assert type(batch) is type(other)
                    pairs = (
                        zip(batch, other, strict=True)
                        if isinstance(batch, tuple)
                        else ((batch[name], other[name]) for name in "xy")
                    )
                    assert all(torch.equal(*pair) for pair in pairs)

    def test_array_by_itself(self, arrays):
        batches = list(FastLoader(arrays["x"], 7, sampler=[3, 3, 1, 19]))
        assert np.array_equal(batches[0].numpy(), arrays["x"][:][[3, 3, 1, 19]])
        assert list(FastLoader(arrays["x"], 6, sampler=[])) == []

    def test_array_beside_a_tensor(self, arrays):
        source = arrays["x"], torch.arange(20)
        for rows, labels in FastLoader(source, 6, shuffle=True, num_threads=2):
            assert np.array_equal(rows.numpy(), arrays["x"][:][labels.numpy()])


def test_h5py_text_is_refused(tmp_path):
    h5py = require_library("h5py")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file["names"] = ["a", "b"]
        with pytest.raises(ValueError, match="rows of numbers or booleans, got object"):
            FastLoader((file["names"],))


@pytest.mark.filterwarnings("ignore")  # webdataset leaves its files to the collector
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}], ids=str)
def test_webdataset(tmp_path, settings):
    webdataset = require_library("webdataset")
    for shard in range(2):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for number in range(5 * shard, 5 * shard + 5):
                data = str(number).encode()
                member = tarfile.TarInfo(f"{number}.cls")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    source = webdataset.WebDataset(
        [str(tmp_path / "0.tar"), str(tmp_path / "1.tar")], shardshuffle=False
    )
    source = source.decode().to_tuple("cls")
    settings = {"batch_size": 3} | settings
    assert repr(list(FastLoader(source, **settings))) == repr(list(DataLoader(source, **settings)))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_state_of_a_stateful_dataloader_is_refused_in_one_line():
    stateful = require_library("torchdata.stateful_dataloader")
    for num_workers in (0, 1):
        theirs = stateful.StatefulDataLoader(range(10), 2, num_workers=num_workers)
        running = iter(theirs)
        next(running)
        with pytest.raises(ValueError, match="torchdata's StatefulDataLoader: finish its epoch"):
            FastLoader(range(10), 2).load_state_dict(theirs.state_dict())
        del running
