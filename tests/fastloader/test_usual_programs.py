"""The usual ways of using a DataLoader, each tried on FastLoader: it delivers the same batches."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, UserDict
from functools import partial
from itertools import cycle, islice

import numpy as np
import pandas
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)
from usual_sources import (
    Fetched,
    Listed,
    Samples,
    SizedStream,
    Stream,
    mapping,
    named,
    optional,
    pair,
    texts,
    without_none,
)

from fastloop import FastLoader

PAIRS = Samples(pair)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


SOURCES = {
    "a Dataset of tuples": lambda: PAIRS,
    "a Dataset of dicts": lambda: Samples(mapping),
    "a Dataset of named tuples": lambda: Samples(named),
    "a Dataset of strings": lambda: Samples(texts),
    "a Dataset of numbers": lambda: Samples(float),
    "a Dataset with __getitems__": lambda: Fetched(pair),
    "a Subset": lambda: Subset(PAIRS, [5, 3, 8, 1]),
    "a part of random_split": lambda: random_split(PAIRS, [7, 3], seeded())[0],
    "a ConcatDataset": lambda: ConcatDataset([PAIRS, PAIRS]),
    "a StackDataset": lambda: StackDataset(PAIRS, Samples(float)),
    "a TensorDataset": lambda: TensorDataset(torch.rand(9, 2), torch.arange(9)),
    "a list of tuples": lambda: [pair(index) for index in range(9)],
    "a list of dicts": lambda: [mapping(index) for index in range(9)],
    "a list of whole numbers": lambda: list(range(9)),
    "a list of numbers": lambda: [0.5 * index for index in range(9)],
    "a list of strings": lambda: [f"text {index}" for index in range(9)],
    "a list of lists of numbers": lambda: [[index, index + 1] for index in range(9)],
    "a range": lambda: range(9),
    "a tensor": lambda: torch.rand(9, 2),
    "an array": lambda: np.arange(18.0).reshape(9, 2),
    "an IterableDataset": lambda: Stream(pair),
    "an IterableDataset of dicts": lambda: Stream(mapping),
    "an IterableDataset with a length": lambda: SizedStream(pair),
    "a ChainDataset": lambda: ChainDataset([Stream(pair), Stream(pair, 5)]),
}
SETTINGS = {
    "defaults": {},
    "batches": {"batch_size": 4},
    "whole batches": {"batch_size": 4, "drop_last": True},
    "single samples": {"batch_size": None},
}


def assert_same_epoch(ours: FastLoader, theirs: DataLoader) -> None:
    epoch, expected = list(ours), list(theirs)
    assert repr(epoch) == repr(expected)
    for batch, other in zip(epoch, expected, strict=True):
        leaves, other_leaves = pytree.tree_leaves(batch), pytree.tree_leaves(other)
        assert [getattr(leaf, "dtype", type(leaf)) for leaf in leaves] == [
            getattr(leaf, "dtype", type(leaf)) for leaf in other_leaves
        ]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_source_is_read_as_dataloader_reads_it(make, settings):
    source = make()
    ours, theirs = FastLoader(source, **settings), DataLoader(source, **settings)
    assert_same_epoch(ours, theirs)
    try:
        assert len(ours) == len(theirs)
    except TypeError:
        with pytest.raises(TypeError, match="has no len"):
            len(ours)


WAYS = {
    "a SequentialSampler": lambda: {"sampler": SequentialSampler(PAIRS), "batch_size": 3},
    "a RandomSampler": lambda: {"sampler": RandomSampler(PAIRS, generator=seeded())},
    "a WeightedRandomSampler": lambda: {
        "sampler": WeightedRandomSampler([0.1] * 10, 20, generator=seeded()),
        "batch_size": 6,
    },
    "a SubsetRandomSampler": lambda: {"sampler": SubsetRandomSampler([1, 3, 5], seeded())},
    "a DistributedSampler": lambda: {"sampler": DistributedSampler(PAIRS, 2, 1), "batch_size": 2},
    "a list as sampler": lambda: {"sampler": [3, 1, 2], "batch_size": 2},
    "a BatchSampler": lambda: {"batch_sampler": BatchSampler(SequentialSampler(PAIRS), 3, False)},
    "lists as batch_sampler": lambda: {"batch_sampler": [[1, 2], [3], [4, 5, 6]]},
    "a collate_fn": lambda: {"collate_fn": list, "batch_size": 3},
    "two workers": lambda: {"num_workers": 2, "batch_size": 3},
    "workers and prefetch_factor": lambda: {"num_workers": 2, "prefetch_factor": 4},
}


@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_settings_mean_what_they_mean_to_dataloader(make):
    assert_same_epoch(FastLoader(PAIRS, **make()), DataLoader(PAIRS, **make()))


@pytest.mark.parametrize("source", [Listed(None), torch.arange(10), np.arange(20).reshape(10, 2)])
@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_batch_sampler_as_sampler_asks_the_source_for_lists(source, num_threads):
    """As torch's documentation recommends it, and as this project's tensorclass loader does it."""
    settings = {"batch_size": None, "sampler": BatchSampler(RandomSampler(range(10)), 3, False)}
    loader = FastLoader(source, num_threads=num_threads, **settings)
    settings["sampler"].sampler.generator = seeded()
    batches = list(loader)
    assert len(batches) == len(loader) == 4
    assert all(isinstance(batch, torch.Tensor) for batch in batches)
    settings["sampler"].sampler.generator = seeded()
    assert repr(batches) == repr(list(DataLoader(source, **settings)))


def test_missing_samples_are_left_out_by_a_collate_fn():
    settings = {"batch_size": 4, "collate_fn": without_none}
    source = Samples(optional)
    assert_same_epoch(FastLoader(source, **settings), DataLoader(source, **settings))


def test_mappings_are_trees_of_their_values(tmp_path):
    columns = {"x": np.arange(6.0).reshape(6, 1), "y": np.arange(6)}
    np.savez(tmp_path / "file.npz", **columns)
    expected = repr(list(FastLoader(columns, 4)))
    for mapping_of in (OrderedDict, UserDict):
        batches = list(FastLoader(mapping_of(columns), 4))
        assert repr([dict(batch) for batch in batches]) == expected
    with np.load(tmp_path / "file.npz") as file:
        loader = FastLoader(file, 4)
    assert repr(list(loader)) == expected


def test_table_is_the_dict_of_its_columns():
    table = pandas.DataFrame({"x": [0.5, 1.5, 2.5], "y": [1, 2, 3]})
    rows = [{"x": 0.5, "y": 1}, {"x": 1.5, "y": 2}, {"x": 2.5, "y": 3}]
    assert repr(list(FastLoader(table, 2))) == repr(list(DataLoader(rows, 2)))


def test_loops_of_people():
    loader = FastLoader(PAIRS, 4)
    assert [len(labels) for _, (_, labels) in enumerate(loader)] == [4, 4, 2]
    assert next(iter(loader))[1].tolist() == [0, 1, 2, 3]
    for _ in loader:
        break
    for (_, first), (_, second) in zip(loader, loader, strict=True):
        assert torch.equal(first, second)
    assert len(list(islice(cycle(loader), 7))) == 7
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert repr(list(other)) == repr(list(loader))
    outer = [labels.tolist() for _, labels in loader for _ in loader]
    assert len(outer) == 9


def test_attributes_are_dataloaders():
    sampler = DistributedSampler(PAIRS, 2, 0)
    for kind in (FastLoader, DataLoader):
        loader = kind(PAIRS, 4, sampler=sampler, drop_last=True)
        loader.sampler.set_epoch(3)
        assert (loader.dataset, loader.batch_size, loader.drop_last) == (PAIRS, 4, True)
        assert sampler.epoch == 3
        assert loader.num_workers == 0
        assert isinstance(loader.pin_memory, bool)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FastLoader(Stream(pair), shuffle=True), "shuffle=True with an IterableDataset"),
        (lambda: FastLoader(Stream(pair), sampler=[1]), "sampler= with an IterableDataset"),
        (lambda: FastLoader(map(pair, range(3))), "map.*IterableDataset"),
        (lambda: FastLoader([PAIRS, PAIRS]), "ConcatDataset"),
        (lambda: FastLoader({"train": PAIRS}), "Dataset"),
        (lambda: FastLoader(Stream(pair), rank=1, world_size=2), "divide an IterableDataset"),
        (lambda: FastLoader(Stream(pair), num_threads=2), "num_threads=2 .*num_workers=2"),
        (lambda: list(FastLoader(PAIRS, sampler=iter([[1, 2]]))), "batch_sampler="),
        (partial(FastLoader, 5), "int"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
