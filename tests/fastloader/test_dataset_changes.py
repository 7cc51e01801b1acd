"""A dataset that a program changes between two epochs is delivered as DataLoader delivers it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from options import require_library
from torch.utils.data import DataLoader, TensorDataset

from fastloop import FastLoader


def make_dataset(rows: torch.Tensor | None = None) -> TensorDataset:
    rows = torch.arange(24.0).reshape(12, 2) if rows is None else rows
    return TensorDataset(rows, torch.arange(12))


def replace_tensors(dataset: TensorDataset) -> None:
    dataset.tensors = (dataset.tensors[0] * 10, dataset.tensors[1])


def replace_data(dataset: TensorDataset) -> None:
    dataset.tensors[0].data = torch.full((12, 2), 7.0)


def write_in_place(dataset: TensorDataset) -> None:
    dataset.tensors[0].mul_(10)


def lengthen(dataset: TensorDataset) -> None:
    dataset.tensors = (torch.arange(21.0), torch.arange(21))


def drop_one(dataset: TensorDataset) -> None:
    dataset.tensors = dataset.tensors[:1]


def change_form(dataset: TensorDataset) -> None:
    """The same memory, in other shapes."""
    dataset.tensors = (dataset.tensors[0].reshape(6, 4), dataset.tensors[1].reshape(6, 2))


def require_grad(dataset: TensorDataset) -> None:
    dataset.tensors[0].requires_grad_()


def differ_in_length(dataset: TensorDataset) -> None:
    dataset.tensors = (dataset.tensors[0][:5], dataset.tensors[1])


CHANGES = [replace_tensors, replace_data, write_in_place, lengthen, drop_one, change_form]


def assert_same_epochs(loader: FastLoader, expected: DataLoader) -> None:
    assert len(loader) == len(expected)
    for ours, theirs in zip(loader, expected, strict=True):
        assert type(ours) is type(theirs) is list
        for leaf, other in zip(ours, theirs, strict=True):
            assert (leaf.dtype, leaf.requires_grad) == (other.dtype, other.requires_grad)
            assert torch.equal(leaf, other)


@pytest.mark.parametrize("change", [*CHANGES, require_grad, differ_in_length])
@pytest.mark.parametrize("order", ["in rows", "in columns"])
def test_changed_tensors_are_delivered(change, order):
    rows = torch.arange(24.0).reshape(2, 12).T if order == "in columns" else None
    dataset = make_dataset(rows)
    loader, expected = FastLoader(dataset, 5), DataLoader(dataset, 5)
    assert_same_epochs(loader, expected)
    change(dataset)
    for _ in range(2):
        assert_same_epochs(loader, expected)


def test_a_change_after_a_loader_was_pickled_is_seen():
    loader = pickle.loads(pickle.dumps(FastLoader(make_dataset(), 5)))
    replace_tensors(loader.dataset)
    assert_same_epochs(loader, DataLoader(loader.dataset, 5))


def test_an_epoch_that_runs_keeps_what_it_has_opened():
    dataset = make_dataset()
    loader = FastLoader(dataset, 5, num_threads=0)
    batches = iter(loader)
    lengthen(dataset)
    assert len(loader) == 5
    assert torch.cat([labels for _, labels in batches]).tolist() == [*range(12)]


def test_tensors_that_are_not_changed_are_opened_once():
    loader = FastLoader(make_dataset(), 5)
    reading = loader._reading
    for _ in range(3):
        list(loader)
    assert loader._reading is reading


def test_a_format_that_is_set_later_holds_for_the_next_epoch():
    hf_datasets = require_library("datasets")
    dataset = hf_datasets.Dataset.from_dict({"x": np.arange(6), "y": np.arange(6)})
    loader = FastLoader(dataset, 4)
    assert {*next(iter(loader))} == {"x", "y"}
    dataset.set_format("torch", columns=["y"])
    for ours, theirs in zip(loader, DataLoader(dataset, 4), strict=True):
        assert ours.keys() == theirs.keys() == {"y"}
        assert torch.equal(ours["y"], theirs["y"])
