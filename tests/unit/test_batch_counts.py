"""Numbers of samples of batches of any form: right, or refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from fastloop.core.types import Invalid, UnclearCount
from fastloop.data.batch_counts import SampleCounter, count_epoch, full_size

Pair = namedtuple("Pair", "first second")
COUNT = 30
INPUTS = [torch.ones(1 + index % 7) for index in range(COUNT)]
IMAGES = [torch.zeros(3, 4 + index % 2, 4) for index in range(COUNT)]
TARGETS = [{"boxes": torch.zeros(index % 3, 4), "labels": ["a"] * index} for index in range(COUNT)]


def pad(sounds):
    return pad_sequence(sounds, batch_first=True)


def pad_pairs(sounds):
    padded, lengths = pad(sounds), torch.tensor([len(each) for each in sounds])
    return (padded, padded > 0), (lengths, lengths)


def pad_with_lengths(sounds):
    lengths = torch.tensor([len(each) for each in sounds])
    return (pad(sounds), lengths), torch.zeros(len(sounds))


def pad_tokens(sounds):
    ids = pad(sounds).long()
    return {"input_ids": ids, "attention_mask": ids, "labels": torch.zeros(len(sounds))}


def columns(samples):
    return tuple(zip(*samples, strict=True))


LOADERS: dict[str, tuple[list, Callable | None]] = {
    "detection": (list(zip(IMAGES, TARGETS, strict=True)), columns),
    "images alone": (IMAGES, list),
    "dict of lists": (IMAGES, lambda images: {"image": images, "id": torch.zeros(len(images))}),
    "list of samples": (list(zip(IMAGES, TARGETS, strict=True)), list),
    "list of dicts": (TARGETS, list),
    "Hugging Face": (INPUTS, pad_tokens),
    "padded pair of one kind": (INPUTS, lambda each: (pad(each), pad(each))),
    "padded in pairs": (INPUTS, pad_pairs),
    "padded with lengths": (INPUTS, pad_with_lengths),
    "packed": (INPUTS, partial(pack_sequence, enforce_sorted=False)),
    "packed with labels": (
        INPUTS,
        lambda each: (pack_sequence(each, enforce_sorted=False), torch.zeros(len(each))),
    ),
    "texts": (["a"] * COUNT, None),
    "dict of texts": ([{"question": "q", "answer": "a"}] * COUNT, None),
    "pair of texts": ([("q", "a")] * COUNT, None),
    "pair of texts, number": ([(("q", "a"), 1)] * COUNT, None),
    "pairs of texts": ([(("q", "a"), ("b", "c"))] * COUNT, None),
    "tuple of tuples": ([("q", "a")] * COUNT, columns),
    "dicts in pairs": ([({"text": "a", "x": torch.ones(3)}, {"y": 1})] * COUNT, None),
    "dicts of one kind in pairs": ([({"text": "a"}, {"text": "b"})] * COUNT, None),
    "named tuples": ([Pair("a", 1)] * COUNT, None),
    "text beside an empty list": ([("a", [])] * COUNT, None),
}


@pytest.mark.parametrize("batch_size", [4, 7, 30, 64])
@pytest.mark.parametrize("name", LOADERS)
def test_samples_of_loaders_are_counted(name, batch_size):
    data, collate = LOADERS[name]
    loader = DataLoader(data, batch_size=batch_size, collate_fn=collate)
    count, size_of = count_epoch(loader)
    assert count == COUNT
    assert [size_of(batch) for batch in loader] == [
        min(batch_size, COUNT - start) for start in range(0, COUNT, batch_size)
    ]


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ((torch.zeros(5, 3), torch.zeros(5)), 5),
        ([torch.zeros(5, 3), torch.zeros(5)], 5),
        (({"ids": torch.zeros(5, 3), "mask": torch.zeros(5, 3)}, torch.zeros(5)), 5),
        ({"text": ["a", "b"], "label": torch.zeros(2), "epoch": 3}, 2),
        ({"image": [torch.zeros(3, 2)] * 4, "id": torch.zeros(4)}, 4),
        (torch.tensor(3.0), 1),
        (torch.zeros(4, 2).numpy(), 4),
    ],
)
def test_samples_of_a_batch_with_one_reading_are_counted(batch, count):
    assert SampleCounter().count(batch) == count


@pytest.mark.parametrize(
    ("batch", "counts"),
    [
        ([torch.zeros(5, 3), torch.zeros(5, 3)], {2, 5}),
        ([(torch.zeros(3), 1)] * 6, {3, 6}),
        ([{"text": ["a"] * 5}, {"text": ["b"] * 5}], {2, 5}),
        (("a", "b", "c"), {1, 3}),
    ],
)
def test_batch_size_decides_between_two_readings(batch, counts):
    with pytest.raises(UnclearCount, match=f"may be read as {min(counts)} or {max(counts)}"):
        SampleCounter().count(batch)
    for size in counts:
        assert SampleCounter(size).count(batch) == size
    with pytest.raises(UnclearCount):
        SampleCounter(100).count(batch)


@pytest.mark.parametrize(
    "batch",
    [
        ("a", "b"),
        (torch.zeros(2), torch.zeros(3)),
        {},
        [],
        [{}, {}],
        "text",
        None,
        {"x": ["a"] * 3, "y": ["b"] * 2},
    ],
)
def test_batch_without_a_clear_number_is_refused(batch):
    with pytest.raises(Invalid, match="return a dict of columns, or give the loader the attribute"):
        SampleCounter().count(batch)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.zeros(2), torch.zeros(3)),
        ((torch.zeros(5, 2), torch.zeros(5, 2)), (torch.zeros(9), torch.zeros(9))),
        (((torch.zeros(3, 2),) * 4, ({"boxes": torch.zeros(9, 4)},) * 4)),
        [{"x": torch.zeros(3), "y": torch.zeros(2)}] * 4,
    ],
)
def test_list_of_samples_without_a_column_has_the_batch_size(batch):
    for size in (None, 7):
        with pytest.raises(UnclearCount, match="may be read as"):
            SampleCounter(size).count(batch)


def flatten_texts(samples):
    """Labels, texts and offsets, as for torch.nn.EmbeddingBag."""
    lengths = torch.tensor([len(each) for each in samples])
    return torch.zeros(len(samples)).long(), torch.cat(samples).long(), lengths.cumsum(0)


@pytest.mark.parametrize("batch_size", [3, 8])
def test_columns_of_several_lengths_are_no_list_of_samples(batch_size):
    loader = DataLoader(INPUTS[:29], batch_size=batch_size, collate_fn=flatten_texts)
    with pytest.raises(UnclearCount, match="let the collate function return a dict"):
        count_epoch(loader)


def test_batch_that_lacks_a_part_is_counted_by_the_others():
    texts = {"text": ["a"] * 3, "x": torch.zeros(3, 2)}
    _, size_of = count_epoch([texts])
    for part in (None, 5, "abc"):
        assert size_of({"text": ["a"] * 4, "x": part}) == 4
        assert size_of({"text": part, "x": torch.zeros(4, 2)}) == 4
    assert size_of({"x": torch.zeros(4, 2)}) == size_of({"text": ["a"] * 4}) == 4
    # A batch of a later epoch may be of another kind.
    assert size_of((["a"] * 4, torch.zeros(4, 2))) == 4
    # squeeze() makes a single number of a column of one sample.
    assert size_of({"text": ["a"], "x": torch.tensor(0)}) == 1
    assert size_of({"text": torch.tensor(0), "x": torch.zeros(1, 2)}) == 1


def test_type_error_of_a_batch_of_the_users_is_told():
    class Columns(dict):
        def __getitem__(self, key):
            raise TypeError("of the user's")

    _, size_of = count_epoch([{"text": ["a"] * 3}])
    with pytest.raises(TypeError, match="of the user's"):
        size_of(Columns(text=["a"] * 3))


def test_batch_size_of_a_loader_is_found():
    class Stream(IterableDataset):
        def __iter__(self):
            yield 1

    data = range(20)
    assert full_size(DataLoader(data, batch_size=8)) == 8
    assert full_size(DataLoader(data, batch_size=64)) == 20
    sampler = BatchSampler(SequentialSampler(data), batch_size=3, drop_last=False)
    assert full_size(DataLoader(data, batch_sampler=sampler)) == 3
    assert full_size(DataLoader(Stream(), batch_size=8)) == 8
    assert full_size(DataLoader(data, batch_size=None)) is None
    assert full_size([data]) is None


leaves = st.sampled_from(
    [
        lambda index: "a" * index,
        lambda index: index,
        lambda index: index / 2,
        lambda _: torch.zeros(()),
        lambda _: torch.zeros(2),
        lambda _: torch.zeros(3, 2),
        lambda _: torch.zeros(3, dtype=torch.int64),
    ]
)


def combine(parts):
    """Functions that make a part of a sample, within a dict, a tuple or a list."""
    lists = st.lists(parts, max_size=4)
    return st.one_of(
        lists.map(lambda makers: lambda index: [make(index) for make in makers]),
        lists.map(lambda makers: lambda index: tuple(make(index) for make in makers)),
        st.tuples(parts, parts).map(lambda two: lambda index: Pair(*(make(index) for make in two))),
        st.dictionaries(st.sampled_from("abc"), parts).map(
            lambda makers: lambda index: {key: make(index) for key, make in makers.items()}
        ),
    )


@pytest.mark.heavy
@settings(max_examples=300, deadline=None)
@given(
    make=st.recursive(leaves, combine, max_leaves=6),
    count=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    collate=st.sampled_from([None, list, tuple]),
)
def test_number_of_samples_is_right_or_refused(make, count, batch_size, collate):
    samples = [make(index) for index in range(count)]
    loader = DataLoader(samples, batch_size=batch_size, collate_fn=collate)
    bounds = [*range(0, count, batch_size), count]
    sizes = [stop - start for start, stop in pairwise(bounds)]
    for epoch in (loader, list(loader)):
        try:
            counted, size_of = count_epoch(epoch)
        except UnclearCount:
            continue
        assert counted == count
        assert [size_of(batch) for batch in epoch] == sizes
