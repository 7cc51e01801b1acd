"""FastLoader over map-style Datasets: the batches of DataLoader, loaded in threads."""

from __future__ import annotations

import threading

import numpy as np
import os_threads
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from fastloop import FastLoader, converted


class SquaresDataset(Dataset):
    """(tensor, dict) samples; reading the sample `broken` fails."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self.count, self.broken = count, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if index == self.broken:
            raise ZeroDivisionError(f"sample {index}")
        return torch.full((3,), float(index)), {"square": index**2, "name": f"number {index}"}


class BatchedDataset(SquaresDataset):
    """A Dataset that reads whole batches only."""

    def __getitem__(self, index: int):
        raise AssertionError("a sample was asked for")

    def __getitems__(self, indices: list[int]):
        assert all(type(index) is int for index in indices)
        return [SquaresDataset.__getitem__(self, index) for index in indices]


def batch_reprs(batches) -> list[str]:
    return [repr(batch) for batch in batches]


@given(
    count=st.integers(1, 60),
    batch_size=st.one_of(st.none(), st.integers(1, 20)),
    drop_last=st.booleans(),
    num_threads=st.integers(1, 3),
    shuffle=st.booleans(),
    kind=st.sampled_from([SquaresDataset, BatchedDataset, TensorDataset, Subset, "tensors"]),
)
def test_batches_of_a_dataset_equal_those_of_dataloader(
    count, batch_size, drop_last, num_threads, shuffle, kind
):
    if batch_size is None:  # here DataLoader reads single samples as well
        kind, drop_last = (SquaresDataset if kind is BatchedDataset else kind), False
    dataset = kind(count) if kind in (SquaresDataset, BatchedDataset) else SquaresDataset(count)
    if kind is TensorDataset:
        dataset = TensorDataset(torch.arange(count), torch.rand(count, 2))
    elif kind is Subset:
        dataset = Subset(dataset, range(0, count, 2))
    elif kind == "tensors":
        dataset = torch.rand(count, 4)
    settings = {"batch_size": batch_size, "drop_last": drop_last, "shuffle": shuffle}
    ours = FastLoader(dataset, num_threads=num_threads, generator=seeded_generator(3), **settings)
    batches = batch_reprs(ours)
    indices = torch.arange(len(dataset))  # DataLoader draws more than its order from a generator
    order = [
        batch.tolist() for batch in FastLoader(indices, generator=seeded_generator(3), **settings)
    ]
    if batch_size is None:
        theirs = DataLoader(dataset, batch_size=None, sampler=order)
    else:
        theirs = DataLoader(dataset, batch_sampler=order)
    expected = batch_reprs(theirs)
    if kind is TensorDataset and batch_size is None:  # a tuple there, a list in batches
        expected = [f"[{text[1:-1]}]" for text in expected]
    assert batches == expected
    assert len(ours) == len(batches)


def seeded_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_collate_fn_gets_samples_and_transform_the_collated_batch():
    loader = FastLoader(
        SquaresDataset(10), 4, collate_fn=lambda samples: [info["name"] for _, info in samples]
    )
    assert list(loader)[2] == ["number 8", "number 9"]
    pairs = TensorDataset(torch.arange(5), torch.arange(5))
    collated = FastLoader(pairs, 5, collate_fn=len, transform=str)
    assert list(collated) == ["5"]


@pytest.mark.parametrize("kind", [set, iter, dict.fromkeys, np.array, lambda b: map(int, b)])
@pytest.mark.parametrize("settings", [{}, {"seed": 0}, {"num_workers": 1}], ids=str)
def test_batches_of_a_batch_sampler_are_any_iterables(kind, settings):
    lists = [[0, 1], [4, 5, 7], [2]]
    for source in (torch.arange(9), SquaresDataset(9)):
        expected = repr(list(FastLoader(source, batch_sampler=lists)))
        for batches in (map(kind, lists), [*map(kind, lists)]):
            loader = FastLoader(source, batch_sampler=batches, **settings)
            assert repr(list(loader)) == expected


class Asked(SquaresDataset):
    """The indices that are asked for."""

    def __init__(self) -> None:
        super().__init__(9)
        self.asked: list = []

    def __getitem__(self, index):
        self.asked.append(index)
        return super().__getitem__(int(index))


class AskedForBatches(Asked):
    def __getitems__(self, indices):
        self.asked.append(indices)
        return [SquaresDataset.__getitem__(self, int(index)) for index in indices]


ORDERS = {
    "ints": {"sampler": [3, 1, 4, 2]},
    "array": {"sampler": np.array([3, 1, 4, 2])},
    "numbers of numpy": {"sampler": [*np.array([3, 1, 4, 2], np.int32)]},
    "tensor": {"sampler": torch.tensor([3, 1, 4, 2])},
    "subset of an array": {
        "sampler": SubsetRandomSampler(np.array([3, 1, 4, 2]), torch.Generator())  # pyright: ignore
    },
    "lists": {"batch_sampler": [[3, 1], [4, 2]]},
    "tuples": {"batch_sampler": [(3, 1), (4, 2)]},
    "arrays": {"batch_sampler": [np.array([3, 1]), np.array([4, 2])]},
    "rows of a tensor": {"batch_sampler": torch.tensor([[3, 1], [4, 2]])},
}


@pytest.mark.parametrize("settings", [{}, {"seed": 0}], ids=str)
@pytest.mark.parametrize("kind", [Asked, AskedForBatches])
@pytest.mark.parametrize("order", ORDERS)
def test_indices_are_those_of_dataloader_as_ints_in_lists(order, kind, settings):
    """DataLoader hands on the objects that a sampler gives."""
    sizes = {} if "batch_sampler" in ORDERS[order] else {"batch_size": 2}
    seen = []
    for loader, further in ((DataLoader, {}), (FastLoader, settings)):
        dataset, sampler = kind(), ORDERS[order].get("sampler")
        if isinstance(sampler, SubsetRandomSampler):
            sampler.generator.manual_seed(0)
        list(loader(dataset, **ORDERS[order], **sizes, **further))
        seen.append(dataset.asked)
    theirs = [np.asarray(indices).tolist() for indices in seen[0]]
    # The same text shows the same values and types.
    assert repr(seen[1]) == repr(theirs)


def test_loader_accepts_batch_samplers_for_datasets():
    batches = [[3, 1], [], [2, 2, 2]]
    loader = FastLoader(SquaresDataset(5), batch_sampler=batches, collate_fn=list)
    assert [[info["square"] for _, info in batch] for batch in loader] == [[9, 1], [], [4, 4, 4]]
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=True)
    assert len(list(FastLoader(SquaresDataset(5), batch_sampler=sampler))) == 2


def add_squares(seen: list, loader: FastLoader) -> None:
    for batch in loader:  # a generator would keep the iterator in the traceback
        seen.append(batch[1]["square"].tolist())


@pytest.mark.parametrize("kind", [SquaresDataset, BatchedDataset])
def test_sample_error_is_raised_unchanged_at_its_batch(kind):
    threads, seen = os_threads.count_threads(), []
    loader = FastLoader(kind(40, broken=17), 4, num_threads=3)
    with pytest.raises(ZeroDivisionError, match=r"^sample 17$"):
        add_squares(seen, loader)
    assert seen == [[n * n for n in range(first, first + 4)] for first in range(0, 16, 4)]
    assert os_threads.falls_to(threads)


def test_threads_read_samples_concurrently():
    barrier = threading.Barrier(2, timeout=30)

    class BarrierDataset(SquaresDataset):
        def __getitem__(self, index):
            if index:  # the loop's own thread reads the first batch
                barrier.wait()
            return index

    assert len(list(FastLoader(BarrierDataset(9), 1, num_threads=2, thread_safe=True))) == 9


class StreamDataset(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (StreamDataset(), {"shuffle": True}, "shuffle=True with an IterableDataset"),
        ({"x": SquaresDataset(3)}, {}, "a source is a Dataset .*, or a tree"),
        ("text", {}, "a source is a Dataset .*, or a tree"),
        (torch.zeros(3), {"collate_fn": list}, "collate_fn is for a Dataset's samples"),
        (
            SquaresDataset(3),
            {"batch_size": None, "drop_last": True},
            "drop_last with batch_size=None",
        ),
    ],
)
def test_loader_rejects_sources_without_indexed_samples(source, settings, message):
    with pytest.raises(ValueError, match=message):
        FastLoader(source, **settings)


def test_batch_size_none_delivers_single_samples():
    source = {"x": torch.arange(12).view(4, 3), "y": np.arange(4)}
    samples = list(FastLoader(source, batch_size=None))
    assert [sample["x"].tolist() for sample in samples] == source["x"].tolist()
    assert [sample["y"].item() for sample in samples] == [0, 1, 2, 3]


def test_dataset_property_indexes_the_samples():
    rows, labels = torch.arange(12).view(4, 3), np.arange(4)
    for dataset in (SquaresDataset(4), TensorDataset(rows)):
        assert FastLoader(dataset).dataset is dataset
    for batch_size in (1, None):
        source = {"x": converted(rows), "y": labels}
        dataset = FastLoader(source, batch_size).dataset
        assert len(dataset) == 4
        assert dataset[-1]["x"].tolist() == [9.0, 10.0, 11.0]
        assert dataset[1]["y"].item() == 1
        with pytest.raises(IndexError):
            dataset[4]
    assert torch.equal(FastLoader(rows).dataset[2], rows[2])


class Opening(SquaresDataset):
    """A Dataset that opens a file when it is first asked for it."""

    @property
    def dataset(self):
        raise OSError("no such file")


def test_a_property_is_not_read_to_find_a_wrapped_dataset():
    assert len(list(FastLoader(Opening(9), 3))) == 3


class WithoutLength(torch.utils.data.Dataset):
    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_without_a_length_is_told_so():
    with pytest.raises(ValueError, match=r"WithoutLength .*: it has no __len__, which is needed"):
        FastLoader(WithoutLength(), 2, sampler=[0, 1])
