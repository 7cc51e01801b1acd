"""Windows of tokens: which they are depends on nothing but their number."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloop import FastLoader, Windows


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=st.integers(2, 400),
    length=st.integers(1, 50),
    stride=st.one_of(st.none(), st.integers(1, 60)),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64, "tensor"]),
    batch_size=st.integers(1, 9),
)
def test_inputs_and_targets_are_the_tokens_one_further_on(
    num_tokens, length, stride, dtype, batch_size
):
    tokens = np.random.default_rng(0).integers(200, size=num_tokens)
    given_ = torch.from_numpy(tokens) if dtype == "tensor" else tokens.astype(dtype)
    if num_tokens < length + 1:
        with pytest.raises(ValueError, match=f"windows of {length + 1} tokens are cut from"):
            Windows.pairs(given_, length, stride=stride)
        return
    loader = FastLoader(Windows.pairs(given_, length, stride=stride), batch_size, num_threads=2)
    starts = range(0, num_tokens - length, stride or length)
    assert loader.num_samples == len(starts)
    inputs, targets = (torch.cat(one) for one in zip(*loader, strict=True))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [tokens[start : start + length].tolist() for start in starts]
    assert targets.tolist() == [tokens[start + 1 : start + length + 1].tolist() for start in starts]


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=st.integers(10, 300),
    length=st.integers(1, 8),
    count=st.integers(1, 200),
    seed=st.integers(-3, 2**40),
    data=st.data(),
)
def test_windows_anywhere_are_the_same_whenever_they_are_asked_for(
    num_tokens, length, count, seed, data
):
    tokens = torch.arange(num_tokens)
    windows = Windows(tokens, length, count=count, seed=seed)
    whole = torch.cat(list(FastLoader(windows, 16)))
    assert len(whole) == len(windows) == count
    assert (whole == whole[:, :1] + torch.arange(length)).all()
    assert whole.max() < num_tokens
    asked = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    found = torch.cat(
        list(FastLoader(Windows(tokens, length, count=count, seed=seed), 3, sampler=asked))
    )
    assert torch.equal(found, whole[asked])


def test_windows_anywhere_are_spread_evenly_and_by_the_seed():
    tokens = np.arange(1000 + 7, dtype=np.uint16)
    starts = {
        seed: Windows(tokens, 8, count=100_000, seed=seed).starts(np.arange(100_000))
        for seed in (0, 1)
    }
    counts = np.bincount(starts[0], minlength=1000)
    # chi-square of 999 degrees: mean 999, standard deviation 45
    assert abs(((counts - 100) ** 2 / 100).sum() - 999) < 5 * 45
    assert (starts[0] == starts[1]).mean() < 0.01
    assert abs(np.corrcoef(starts[0][:-1], starts[0][1:])[0, 1]) < 0.02


def test_pairs_anywhere_are_the_same_windows():
    tokens = np.random.default_rng(0).integers(50_000, size=5000).astype(np.uint16)
    for inputs, targets in FastLoader(Windows.pairs(tokens, 64, count=500), 32, shuffle=True):
        assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_tokens_come_as_they_are_stored_where_that_is_asked_for():
    tokens = np.arange(100, dtype=np.uint16)
    (batch,) = FastLoader(Windows(tokens, 10, dtype=None), 10)
    assert batch.dtype == torch.uint16
    assert batch.flatten().tolist() == tokens.tolist()


def test_a_file_is_mapped_again_in_another_process(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(60_000, dtype=np.uint16).tofile(path)
    windows = Windows(np.memmap(path, np.uint16, mode="r"), 100)
    pickled = pickle.dumps(windows)
    assert len(pickled) < 2000
    copied = pickle.loads(pickled)
    assert isinstance(copied.tokens, np.memmap)
    assert torch.equal(next(iter(FastLoader(copied, 9))), next(iter(FastLoader(windows, 9))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 0}, "length=0"),
        ({"length": 3, "stride": 0}, "stride=0"),
        ({"length": 3, "count": 0}, "count=0"),
        ({"length": 3, "stride": 3, "count": 3}, "stride with count"),
        ({"length": 11}, "windows of 11 tokens are cut from one row of them, got"),
    ],
)
def test_windows_that_can_not_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Windows(torch.arange(10), **settings)
    with pytest.raises(ValueError, match="one row"):
        Windows(torch.zeros(3, 3), 1)
