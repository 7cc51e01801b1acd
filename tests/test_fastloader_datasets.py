"""FastLoader over map-style Datasets: what DataLoader delivers, made in threads."""

from __future__ import annotations

import threading

import numpy as np
import os_threads
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from fastloop import FastLoader, converted


class Squares(Dataset):
    """(float, dict) samples; one may fail."""

    def __init__(self, count: int, broken: int = -1) -> None:
        self.count, self.broken = count, broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        if index == self.broken:
            raise ZeroDivisionError(f"sample {index}")
        return torch.full((3,), float(index)), {"square": index**2, "name": f"number {index}"}


class AtOnce(Squares):
    """Read a batch at a time, and in no other way."""

    def __getitem__(self, index: int):
        raise AssertionError("a sample was asked for")

    def __getitems__(self, indices: list[int]):
        assert all(type(one) is int for one in indices)
        return [Squares.__getitem__(self, index) for index in indices]


def shown(batches) -> list[str]:
    return [repr(batch) for batch in batches]


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 60),
    batch_size=st.one_of(st.none(), st.integers(1, 20)),
    drop_last=st.booleans(),
    num_threads=st.integers(1, 3),
    shuffle=st.booleans(),
    kind=st.sampled_from([Squares, AtOnce, TensorDataset, Subset, "tensors"]),
)
def test_batches_are_dataloaders(count, batch_size, drop_last, num_threads, shuffle, kind):
    if batch_size is None:  # DataLoader itself asks for single samples then
        kind, drop_last = (Squares if kind is AtOnce else kind), False
    dataset = kind(count) if kind in (Squares, AtOnce) else Squares(count)
    if kind is TensorDataset:
        dataset = TensorDataset(torch.arange(count), torch.rand(count, 2))
    elif kind is Subset:
        dataset = Subset(dataset, range(0, count, 2))
    elif kind == "tensors":
        dataset = torch.rand(count, 4)
    asked = {"batch_size": batch_size, "drop_last": drop_last, "shuffle": shuffle}
    ours = FastLoader(dataset, num_threads=num_threads, generator=seeded(3), **asked)
    found = shown(ours)
    numbers = torch.arange(len(dataset))  # DataLoader draws more than its order from a generator
    order = [one.tolist() for one in FastLoader(numbers, generator=seeded(3), **asked)]
    if batch_size is None:
        theirs = DataLoader(dataset, batch_size=None, sampler=order)
    else:
        theirs = DataLoader(dataset, batch_sampler=order)
    wanted = shown(theirs)
    if kind is TensorDataset and batch_size is None:  # a tuple there, a list in batches
        wanted = [f"[{one[1:-1]}]" for one in wanted]
    assert found == wanted
    assert len(ours) == len(found)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_collate_fn_gets_the_samples_and_transform_what_it_makes():
    loader = FastLoader(
        Squares(10), 4, collate_fn=lambda samples: [one["name"] for _, one in samples]
    )
    assert list(loader)[2] == ["number 8", "number 9"]
    pairs = TensorDataset(torch.arange(5), torch.arange(5))
    collated = FastLoader(pairs, 5, collate_fn=len, transform=str)
    assert list(collated) == ["5"]


def test_batch_samplers_serve_datasets_too():
    batches = [[3, 1], [], [2, 2, 2]]
    loader = FastLoader(Squares(5), batch_sampler=batches, collate_fn=list)
    assert [[one["square"] for _, one in batch] for batch in loader] == [[9, 1], [], [4, 4, 4]]
    sampler = BatchSampler(SequentialSampler(range(5)), 2, drop_last=True)
    assert len(list(FastLoader(Squares(5), batch_sampler=sampler))) == 2


@pytest.mark.parametrize("kind", [Squares, AtOnce])
def test_a_samples_error_is_raised_as_it_is_in_its_turn(kind):
    before, seen = os_threads.counted(), []
    loader = FastLoader(kind(40, broken=17), 4, num_threads=3)
    with pytest.raises(ZeroDivisionError, match=r"^sample 17$"):
        seen.extend(batch[1]["square"].tolist() for batch in loader)
    assert seen == [[n * n for n in range(at, at + 4)] for at in range(0, 16, 4)]
    assert os_threads.fell_to(before)


def test_several_threads_read_at_once():
    both = threading.Barrier(2, timeout=30)

    class Meeting(Squares):
        def __getitem__(self, index):
            both.wait()
            return index

    assert len(list(FastLoader(Meeting(8), 1, num_threads=2))) == 8


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (Stream(), {}, "Stream: it has no indices; fastloop.write_store"),
        ({"x": Squares(3)}, {}, "a source is a Dataset, or a tree"),
        ("text", {}, "a source is a Dataset, or a tree"),
        (torch.zeros(3), {"collate_fn": list}, "collate_fn is for a Dataset's samples"),
        (Squares(3), {"batch_size": None, "drop_last": True}, "drop_last with batch_size=None"),
    ],
)
def test_what_has_no_samples_is_refused(source, settings, message):
    with pytest.raises(ValueError, match=message):
        FastLoader(source, **settings)


def test_single_samples_of_columns_have_no_first_dimension():
    source = {"x": torch.arange(12).view(4, 3), "y": np.arange(4)}
    samples = list(FastLoader(source, batch_size=None))
    assert [one["x"].tolist() for one in samples] == source["x"].tolist()
    assert [one["y"].item() for one in samples] == [0, 1, 2, 3]


def test_its_dataset_has_its_samples():
    rows, labels = torch.arange(12).view(4, 3), np.arange(4)
    for one in (Squares(4), TensorDataset(rows)):
        assert FastLoader(one).dataset is one
    for batch_size in (1, None):
        source = {"x": converted(rows), "y": labels}
        dataset = FastLoader(source, batch_size).dataset
        assert len(dataset) == 4
        assert dataset[-1]["x"].tolist() == [9.0, 10.0, 11.0]
        assert dataset[1]["y"].item() == 1
        with pytest.raises(IndexError):
            dataset[4]
    assert torch.equal(FastLoader(rows).dataset[2], rows[2])
