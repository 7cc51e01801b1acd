"""experiments/copies and experiments/placements: their tables' claims, and every row measured."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.copies import run as copies
from experiments.placements import run as placements

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # torch.load's advice, given once in a process: to the first test that loads there
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning"),
]
DTYPES = (np.uint8, np.int64, np.float16, np.float32, np.float64, np.bool_)


@pytest.mark.parametrize("name", copies.TO_TORCH)
def test_conversion_to_torch_shares_memory_as_stated(name):
    conversion, array = copies.TO_TORCH[name], np.zeros((3, 4), np.float32)
    tensor = conversion.convert(array)
    array[0, 0] = 7
    assert bool(tensor[0, 0] == 7) == conversion.shares
    tensor[1, 1] = 5
    assert bool(array[1, 1] == 5) == conversion.shares


@pytest.mark.parametrize("name", copies.TO_NUMPY)
def test_conversion_to_numpy_shares_memory_as_stated(name):
    conversion, tensor = copies.TO_NUMPY[name], torch.zeros(3, 4)
    array = conversion.convert(tensor)
    tensor[0, 0] = 7
    assert bool(array[0, 0] == 7) == conversion.shares


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", copies.TO_TORCH)
def test_conversion_to_torch_keeps_the_dtype_as_stated(name, dtype):
    conversion, array = copies.TO_TORCH[name], np.ones((3, 4), dtype)
    tensor = conversion.convert(array)
    expected = (
        torch.from_numpy(array).dtype if conversion.keeps_dtype else torch.get_default_dtype()
    )
    assert (tensor.dtype, tensor.shape) == (expected, array.shape)
    assert bool((tensor == 1).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("name", copies.TO_NUMPY)
def test_conversion_to_numpy_keeps_the_dtype(name, dtype):
    conversion = copies.TO_NUMPY[name]
    array = conversion.convert(torch.from_numpy(np.ones((3, 4), dtype)))
    assert conversion.keeps_dtype
    assert (array.dtype, array.shape) == (np.dtype(dtype), (3, 4))
    assert bool((array == 1).all())


def test_every_conversion_is_measured_at_every_size(monkeypatch):
    monkeypatch.setattr(copies, "BUDGET_S", 1e-6)
    rows = copies.measure(num_rounds=1)
    assert len(rows) == len(copies.SIZES) * (len(copies.TO_TORCH) + len(copies.TO_NUMPY))
    assert all(row.microseconds > 0 for row in rows)
    assert copies.table(rows).count("\n") == 1 + len(rows) / len(copies.SIZES)


@pytest.mark.heavy
@pytest.mark.jax
def test_every_placement_is_measured_on_every_tree(monkeypatch):
    monkeypatch.setattr(placements, "BUDGET_S", 1e-6)
    small = {name: (count, 2) for name, (count, _) in placements.TREES.items()}
    monkeypatch.setattr(placements, "TREES", small)
    rows, refusals = placements.measure(torch.device("cpu"), num_rounds=1)
    assert len(rows) == len(small) * (1 + len(placements.CLASSES) - len(refusals))
    assert all(row.waiting_us is not None for row in rows)
    assert placements.table(rows).count("\n") == 1 + len(rows)
