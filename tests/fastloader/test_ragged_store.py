"""Stores of samples that differ in length and of texts: the samples come back as they were."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from fastloop import FastLoader, open_store, write_store
from fastloop.core.types import BadData

COUNT = 50


def make_sample(index: int) -> dict:
    length = (7 * index) % 11
    sound = torch.arange(length, dtype=torch.int16)
    return {"sound": sound, "same": torch.full((2, 3), index), "label": index}


def make_named(index: int) -> dict:
    return make_sample(index) | {"name": f"näme {index}" * (index % 3), "more": ("a", index)}


class Samples(torch.utils.data.Dataset):
    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        return self.make(index)


class Stream(IterableDataset):
    def __init__(self, make) -> None:
        self.make = make

    def __iter__(self):
        return map(self.make, range(COUNT))


@pytest.mark.parametrize("kind", [Samples, Stream])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_several_lengths_come_back_as_they_were(tmp_path, kind, num_workers):
    root = write_store(kind(make_sample), tmp_path / "store", ragged=True, num_workers=num_workers)
    tree = open_store(root)
    assert tree["same"].shape == (COUNT, 2, 3)
    expected = [make_sample(index) for index in range(COUNT)]
    assert repr(list(FastLoader(tree, batch_size=None))) == repr(
        list(DataLoader(expected, batch_size=None, collate_fn=as_tensors))
    )
    assert repr(FastLoader(tree).dataset[13]["sound"]) == repr(make_sample(13)["sound"])


def as_tensors(sample: dict) -> dict:
    return {name: torch.as_tensor(value) for name, value in sample.items()}


@pytest.mark.parametrize("num_threads", [0, 1, 2])
def test_batches_are_padded_and_tell_lengths(tmp_path, num_threads):
    tree = open_store(write_store(Samples(make_sample), tmp_path / "store", ragged=True))
    loader = FastLoader(tree, 8, shuffle=True, num_threads=num_threads)
    seen = []
    for batch in loader:
        padded, lengths = batch["sound"]
        assert padded.shape[1] == lengths.max()
        assert padded.dtype == torch.int16
        for row, length, label in zip(padded, lengths, batch["label"], strict=True):
            assert torch.equal(row[:length], make_sample(int(label))["sound"])
            assert not row[length:].any()
            seen.append(int(label))
    assert sorted(seen) == list(range(COUNT))
    assert seen != sorted(seen)


def test_collate_fn_gets_the_samples(tmp_path):
    tree = open_store(write_store(Samples(make_sample), tmp_path / "store", ragged=True))

    def pack(samples: list[dict]) -> torch.Tensor:
        return torch.cat([sample["sound"] for sample in samples])

    ours = FastLoader(tree, 7, collate_fn=pack, num_threads=2)
    theirs = DataLoader(Samples(make_sample), 7, collate_fn=pack)
    assert repr(list(ours)) == repr(list(theirs))


@pytest.mark.parametrize("kind", [Samples, Stream])
def test_texts_are_kept_or_left_out_by_a_word(tmp_path, kind):
    kept = write_store(kind(make_named), tmp_path / "kept", ragged=True, strings="keep")
    loader = FastLoader(open_store(kept), 20)
    names = [name for batch in loader for name in batch["name"]]
    assert names == [make_named(index)["name"] for index in range(COUNT)]
    first = next(iter(loader))
    assert first["more"][0] == ["a"] * 20
    without = write_store(kind(make_named), tmp_path / "out", ragged=True, strings="leave_out")
    tree = open_store(without)
    assert set(tree) == {"sound", "same", "label", "more"}
    assert np.array_equal(tree["more"][0], np.arange(COUNT))


def test_texts_of_equal_samples_need_no_ragged_store(tmp_path):
    def make(index: int):
        return torch.full((2,), index), f"text {index}"

    tree = open_store(write_store(Samples(make), tmp_path / "store", strings="keep"))
    theirs = [(rows, list(names)) for rows, names in DataLoader(Samples(make), 3)]
    assert repr([tuple(batch) for batch in FastLoader(tree, 3)]) == repr(theirs)
    again = pickle.loads(pickle.dumps(FastLoader(tree, 3)))
    assert len(pickle.dumps(again)) < 20_000
    assert repr(list(again)) == repr(list(FastLoader(tree, 3)))


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (make_named, {}, r"\['name'\] is a text: strings=\"keep\""),
        (make_named, {"strings": "keep"}, "0 to 10 rows; ragged=True"),
        (make_sample, {}, "samples differ"),
        (lambda index: torch.zeros(2, 1 + index % 2), {"ragged": True}, "samples differ"),
    ],
)
@pytest.mark.parametrize("kind", [Samples, Stream])
def test_what_is_not_said_is_refused_and_nothing_written(tmp_path, kind, make, settings, message):
    with pytest.raises(BadData, match=message) as caught:
        write_store(kind(make), tmp_path / "store", **settings)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()


class Named(NamedTuple):
    x: torch.Tensor
    name: str


@pytest.mark.parametrize("kind", [Samples, Stream])
def test_text_that_a_kind_of_sample_can_not_do_without_is_named(tmp_path, kind):
    def make(index: int) -> Named:
        return Named(torch.full((2,), index), f"text {index}")

    with pytest.raises(BadData, match=r"sample.*name.* is a text: .* dicts, lists and tuples"):
        write_store(kind(make), tmp_path / "store", strings="leave_out")
    assert not (tmp_path / "store").exists()


def test_unknown_word_is_refused(tmp_path):
    with pytest.raises(ValueError, match="strings='drop': allowed are 'keep', 'leave_out'"):
        write_store(Samples(make_named), tmp_path / "store", strings="drop")


def test_equal_store_is_kept_and_another_refused(tmp_path):
    settings = {"ragged": True, "strings": "keep"}
    root = write_store(Samples(make_named), tmp_path / "store", **settings)
    before = (root / "0.npy").stat().st_ino
    write_store(Samples(make_named), root, **settings)
    assert (root / "0.npy").stat().st_ino == before

    def other(index: int) -> dict:
        return make_named(index) | {"name": "another"}

    for make, words in ((other, settings), (make_sample, {"ragged": True})):
        with pytest.raises(FileExistsError, match="a store of other data"):
            write_store(Samples(make), root, **words)
    write_store(Samples(make_sample), root, ragged=True, overwrite=True)
    assert set(open_store(root)) == {"sound", "same", "label"}


def test_samples_are_counted_from_the_end_as_those_of_a_list(tmp_path):
    tree = open_store(write_store(Samples(make_sample), tmp_path / "store", ragged=True))
    dataset = FastLoader(tree).dataset
    assert repr(dataset[-1]) == repr(dataset[COUNT - 1])
    assert repr(dataset[[-1, 3]]) == repr(dataset[[COUNT - 1, 3]])
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            dataset[index]
        with pytest.raises(IndexError):
            dataset[[0, index]]


def test_rows_of_a_leaf_are_counted_from_the_end(tmp_path):
    sound = open_store(write_store(Samples(make_sample), tmp_path / "store", ragged=True))["sound"]
    last, first = make_sample(COUNT - 1)["sound"], make_sample(0)["sound"]
    assert sound[-1].tolist() == last.tolist()
    assert sound[-COUNT].tolist() == first.tolist()
    padded, lengths = sound.take([-1, 3])
    assert padded[0, : lengths[0]].tolist() == last.tolist()
    for index in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError):
            sound[index]
        with pytest.raises(IndexError):
            sound.take([0, index])
