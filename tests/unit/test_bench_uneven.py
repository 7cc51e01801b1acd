"""Batches of texts, of lists and of several widths, as loops over text, sound or boxes have."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import fastloop
from fastloop.core.trees import find_tensors
from fastloop.core.types import Invalid

COUNT = 30
TEXTS = [{"text": "a" * index, "label": index % 2} for index in range(COUNT)]
SOUNDS = [(torch.ones(1 + index % 7), index % 2) for index in range(COUNT)]
BOXES = [(torch.zeros(3, 4, 4), {"boxes": torch.zeros(index % 3, 4)}) for index in range(COUNT)]


def pad(samples):
    sounds, labels = zip(*samples, strict=True)
    return pad_sequence(sounds, batch_first=True), torch.tensor(labels)


def columns(samples):
    return tuple(zip(*samples, strict=True))


def make_loader(name: str, **settings) -> DataLoader:
    data, collate = {
        "texts": (TEXTS, None),
        "sounds": (SOUNDS, pad),
        "boxes": (BOXES, columns),
        "samples": (BOXES, list),
    }[name]
    return DataLoader(data, batch_size=7, collate_fn=collate, **settings)


@pytest.mark.parametrize("name", ["texts", "sounds", "boxes", "samples"])
@pytest.mark.parametrize("step", [None, len])
def test_bench_counts_the_samples_of_uneven_batches(name, step):
    result = fastloop.bench(make_loader(name), step, trials=2, min_window_s=0)
    assert result.samples == COUNT
    assert result.limit_fraction is None
    assert len(result.seconds) == 2


@pytest.mark.parametrize("name", ["texts", "sounds", "boxes", "samples"])
def test_bench_all_compares_numbers_of_uneven_batches_if_asked_to(name):
    loaders = {"plain": make_loader(name), "shuffled": make_loader(name, shuffle=True)}
    with pytest.raises(Invalid, match="same_data=False compares only the numbers of samples"):
        fastloop.bench_all(loaders, trials=1)
    result = fastloop.bench_all(loaders, trials=2, min_window_s=0, same_data=False)
    assert result.samples == COUNT
    short = loaders | {"short": make_loader(name, drop_last=True)}
    with pytest.raises(Invalid, match="short does not deliver what plain does: 28 samples deliver"):
        fastloop.bench_all(short, trials=1, same_data=False)


def test_tensors_are_found_beside_texts_and_numbers():
    rows, sample = torch.zeros(3, 2), ("name", 5, torch.ones(2))
    tree = {"ids": [[0] * 512] * 3, "rows": rows, "samples": [sample, [*sample]], "text": ["a"]}
    assert [id(each) for each in find_tensors(tree)] == [id(rows), *[id(sample[2])] * 2]
    # Ids are not looked at one by one.
    assert find_tensors([0] * 512 + [rows]) == []


def test_even_loader_beside_an_uneven_one_is_counted():
    even = DataLoader(torch.zeros(COUNT, 2), batch_size=7)
    result = fastloop.bench_all(
        {"even": even, "uneven": make_loader("sounds")}, trials=1, min_window_s=0, same_data=False
    )
    assert result.samples == COUNT


def test_loaders_of_dicts_in_pairs_are_not_equal_by_a_wrong_count():
    pairs = [({"text": "a", "x": torch.ones(3)}, {"y": index}) for index in range(64)]
    loaders = {
        "all": DataLoader(pairs, batch_size=8),
        "half": DataLoader(pairs[:32], batch_size=4),
    }
    assert fastloop.bench(loaders["all"], trials=1, min_window_s=0).samples == 64
    with pytest.raises(Invalid, match="half does not deliver what all does: 32 samples delivered"):
        fastloop.bench_all(loaders, trials=1, same_data=False)


def test_bench_says_what_makes_the_number_clear():
    pair = [{"text": ["a"] * 5}, {"text": ["b"] * 5}]
    with pytest.raises(Invalid, match="may be read as 2 or 5 samples; let the collate"):
        fastloop.bench([pair], trials=1)
