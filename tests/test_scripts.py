"""Scripts of experiments/ that are called from elsewhere too, and what they say is so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from options import script

copies = script("copies")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
DTYPES = (np.uint8, np.int64, np.float16, np.float32, np.float64, np.bool_)


@pytest.mark.parametrize("name", copies.TO_TORCH)
def test_a_tensor_shares_the_arrays_memory_or_not(name):
    way, array = copies.TO_TORCH[name], np.zeros((3, 4), np.float32)
    tensor = way.convert(array)
    array[0, 0] = 7
    assert bool(tensor[0, 0] == 7) == way.shares
    tensor[1, 1] = 5
    assert bool(array[1, 1] == 5) == way.shares


@pytest.mark.parametrize("name", copies.TO_NUMPY)
def test_an_array_shares_the_tensors_memory_or_not(name):
    way, tensor = copies.TO_NUMPY[name], torch.zeros(3, 4)
    array = way.convert(tensor)
    tensor[0, 0] = 7
    assert bool(array[0, 0] == 7) == way.shares


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: np.dtype(one).name)
@pytest.mark.parametrize("name", copies.TO_TORCH)
def test_the_dtype_of_an_array_is_kept_or_not(name, dtype):
    way, array = copies.TO_TORCH[name], np.ones((3, 4), dtype)
    tensor = way.convert(array)
    wanted = torch.from_numpy(array).dtype if way.keeps_dtype else torch.get_default_dtype()
    assert (tensor.dtype, tensor.shape) == (wanted, array.shape)
    assert bool((tensor == 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda one: np.dtype(one).name)
@pytest.mark.parametrize("name", copies.TO_NUMPY)
def test_the_dtype_of_a_tensor_is_kept(name, dtype):
    way = copies.TO_NUMPY[name]
    array = way.convert(torch.from_numpy(np.ones((3, 4), dtype)))
    assert way.keeps_dtype
    assert (array.dtype, array.shape) == (np.dtype(dtype), (3, 4))
    assert bool((array == 1).all())


def test_every_way_is_measured_at_every_size(monkeypatch):
    monkeypatch.setattr(copies, "BUDGET_S", 1e-6)
    rows = copies.measure(rounds=1)
    assert len(rows) == len(copies.SIZES) * (len(copies.TO_TORCH) + len(copies.TO_NUMPY))
    assert all(row.microseconds > 0 for row in rows)
    assert copies.table(rows).count("\n") == 1 + len(rows) / len(copies.SIZES)


@pytest.mark.jax
def test_every_placement_is_measured_on_every_tree(monkeypatch):
    placements = script("placements")
    monkeypatch.setattr(placements, "BUDGET_S", 1e-6)
    small = {name: (count, 2) for name, (count, _) in placements.TREES.items()}
    monkeypatch.setattr(placements, "TREES", small)
    rows, refused = placements.measure(torch.device("cpu"), rounds=1)
    assert len(rows) == len(small) * (1 + len(placements.CLASSES) - len(refused))
    assert all(row.waiting_us is not None for row in rows)
    assert placements.table(rows).count("\n") == 1 + len(rows)
