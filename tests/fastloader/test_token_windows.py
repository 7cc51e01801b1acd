"""Windows of tokens: each depends only on its index and the settings."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloop import FastLoader, Windows


@given(
    num_tokens=st.integers(2, 400),
    length=st.integers(1, 50),
    stride=st.one_of(st.none(), st.integers(1, 60)),
    dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64, "tensor"]),
    batch_size=st.integers(1, 9),
)
def test_targets_are_the_inputs_shifted_by_one_token(num_tokens, length, stride, dtype, batch_size):
    tokens = np.random.default_rng(0).integers(200, size=num_tokens)
    stored = torch.from_numpy(tokens) if dtype == "tensor" else tokens.astype(dtype)
    if num_tokens < length + 1:
        with pytest.raises(ValueError, match=f"windows of {length + 1} tokens are cut from"):
            Windows.pairs(stored, length, stride=stride)
        return
    loader = FastLoader(Windows.pairs(stored, length, stride=stride), batch_size, num_threads=2)
    starts = range(0, num_tokens - length, stride or length)
    assert loader.num_samples == len(starts)
    inputs, targets = (torch.cat(parts) for parts in zip(*loader, strict=True))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.tolist() == [tokens[start : start + length].tolist() for start in starts]
    assert targets.tolist() == [tokens[start + 1 : start + length + 1].tolist() for start in starts]


@given(
    num_tokens=st.integers(10, 300),
    length=st.integers(1, 8),
    count=st.integers(1, 200),
    seed=st.integers(-3, 2**40),
    data=st.data(),
)
def test_random_windows_depend_only_on_their_index(num_tokens, length, count, seed, data):
    tokens = torch.arange(num_tokens)
    windows = Windows(tokens, length, count=count, seed=seed)
    whole = torch.cat(list(FastLoader(windows, 16)))
    assert len(whole) == len(windows) == count
    assert (whole == whole[:, :1] + torch.arange(length)).all()
    assert whole.max() < num_tokens
    indices = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20))
    selection = torch.cat(
        list(FastLoader(Windows(tokens, length, count=count, seed=seed), 3, sampler=indices))
    )
    assert torch.equal(selection, whole[indices])


def test_random_windows_are_uniform_and_depend_on_the_seed():
    tokens = np.arange(1000 + 7, dtype=np.uint16)
    starts = {
        seed: Windows(tokens, 8, count=100_000, seed=seed).starts(np.arange(100_000))
        for seed in (0, 1)
    }
    counts = np.bincount(starts[0], minlength=1000)
    # chi-square with 999 degrees of freedom: mean 999, standard deviation 45
    assert abs(((counts - 100) ** 2 / 100).sum() - 999) < 5 * 45
    assert (starts[0] == starts[1]).mean() < 0.01
    assert abs(np.corrcoef(starts[0][:-1], starts[0][1:])[0, 1]) < 0.02


def test_random_pairs_share_their_windows():
    tokens = np.random.default_rng(0).integers(50_000, size=5000).astype(np.uint16)
    for inputs, targets in FastLoader(Windows.pairs(tokens, 64, count=500), 32, shuffle=True):
        assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_dtype_none_keeps_the_stored_dtype():
    tokens = np.arange(100, dtype=np.uint16)
    (batch,) = FastLoader(Windows(tokens, 10, dtype=None), 10)
    assert batch.dtype == torch.uint16
    assert batch.flatten().tolist() == tokens.tolist()


def test_unpickled_windows_map_their_file_again(tmp_path):
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
        ({"length": 3, "first": -1}, "first=-1: allowed is 0 or more"),
        ({"length": 3, "beyond": -20}, "beyond=-20: allowed is 0 or more"),
        ({"length": 3.0}, "length=3.0: allowed is 1 or more"),
        ({"length": None}, "length=None: allowed is 1 or more"),
        ({"length": 3, "stride": 3, "count": 3}, "stride with count"),
        ({"length": 11}, "windows of 11 tokens are cut from a one-dimensional array, got"),
    ],
)
def test_windows_reject_invalid_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        Windows(torch.arange(10), **settings)
    with pytest.raises(ValueError, match="a one-dimensional array"):
        Windows(torch.zeros(3, 3), 1)


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4], range(4), 7, None])
def test_windows_of_another_type_than_an_array_name_the_argument(tokens):
    allowed = "allowed: a one-dimensional array, tensor or memory map"
    with pytest.raises(TypeError, match=rf"^tokens={type(tokens).__name__}: {allowed}$"):
        Windows(tokens, 2)
    with pytest.raises(TypeError, match=r"^tokens="):
        Windows.pairs(tokens, 2)
