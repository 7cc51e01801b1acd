"""Batches of a tree have its structure, at any depth, in all engines and out of stores."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from fastloop import FastLoader, converted, open_store, write_store

COUNT = 5
Pair = namedtuple("Pair", "first second")
SHAPES = (), (2,), (0,)


def make_leaf(shape: tuple[int, ...], as_array: bool) -> torch.Tensor | np.ndarray:
    rows = torch.arange(COUNT * int(np.prod(shape))).view(COUNT, *shape)
    return rows.numpy() if as_array else rows


def containers(inner: st.SearchStrategy) -> st.SearchStrategy:
    names = st.sampled_from("abc")
    return st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3),
        st.dictionaries(names, inner, max_size=3),
        st.dictionaries(names, inner, max_size=2).map(OrderedDict),
        st.tuples(inner, inner).map(lambda items: Pair(*items)),
    )


LEAVES = st.builds(make_leaf, st.sampled_from(SHAPES), st.booleans())
WRAPS = {
    "tuple": lambda leaf: (leaf,),
    "list": lambda leaf: [leaf],
    "dict": lambda leaf: {"x": leaf},
    "beside nothing": lambda leaf: ((), {"x": leaf}, []),
}
WRAPPED = st.builds(lambda name, leaf: WRAPS[name](leaf), st.sampled_from([*WRAPS]), LEAVES)
# a tuple whose items hold one leaf each is easily taken for a flat one
TREES = st.recursive(LEAVES, containers, max_leaves=5) | st.tuples(WRAPPED, LEAVES | WRAPPED)


def count_leaves(tree: Any) -> int:
    return len(torch.utils._pytree.tree_leaves(tree))


def is_source(tree: Any) -> bool:
    """A list is no tree of columns, and a tree without leaves has no length."""
    return type(tree) is not list and count_leaves(tree) > 0


def rows_of(tree: Any, index: Any) -> Any:
    """The rows of a tree of columns, by a plain recursion."""
    if isinstance(tree, dict):
        return type(tree)((key, rows_of(value, index)) for key, value in tree.items())
    if isinstance(tree, Pair):
        return Pair(*(rows_of(value, index) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(rows_of(value, index) for value in tree)
    return torch.as_tensor(tree)[index]


def collated(tree: Any) -> Any:
    """The tree as default_collate makes it: lists in the place of tuples without names."""
    if isinstance(tree, dict):
        return type(tree)((key, collated(value)) for key, value in tree.items())
    if isinstance(tree, Pair):
        return Pair(*map(collated, tree))
    return list(map(collated, tree)) if isinstance(tree, tuple | list) else tree


class Samples(Dataset):
    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return rows_of(self.tree, index)


ENGINES = {
    "native or numpy": {},
    "threads": {"num_threads": 2},
    "transform": {"transform": lambda batch: batch},
    "views": {"copy": False},
}


@pytest.mark.heavy
@given(tree=TREES.filter(is_source), batch_size=st.sampled_from([2, 5]))
@pytest.mark.parametrize("settings", ENGINES.values(), ids=ENGINES)
def test_batch_has_the_structure_of_its_columns(settings, tree, batch_size):
    ours = list(FastLoader(tree, batch_size, **settings))
    expected = [
        rows_of(tree, slice(start, start + batch_size)) for start in range(0, COUNT, batch_size)
    ]
    assert repr(ours) == repr(expected)
    samples = FastLoader(tree, None, **settings)
    assert repr(list(samples)) == repr([rows_of(tree, index) for index in range(COUNT)])
    theirs = list(DataLoader(FastLoader(tree).dataset, batch_size))
    assert repr(list(map(collated, ours))) == repr(theirs)


@given(tree=TREES)
def test_batch_of_samples_has_the_structure_that_dataloader_gives_it(tree):
    ours, theirs = FastLoader(Samples(tree), 2), DataLoader(Samples(tree), 2)
    assert repr(list(ours)) == repr(list(theirs))


def has_names(tree: Any) -> bool:
    if isinstance(tree, Pair):
        return True
    values = tree.values() if isinstance(tree, dict) else tree
    return isinstance(tree, dict | tuple | list) and any(map(has_names, values))


@pytest.mark.heavy
@given(tree=TREES.filter(lambda tree: count_leaves(tree) > 0 and not has_names(tree)))
def test_store_of_samples_keeps_their_structure(tmp_path_factory, tree):
    root = tmp_path_factory.mktemp("trees") / "store"
    rows = open_store(write_store(Samples(tree), root))
    for batch, expected in zip(FastLoader(rows, 2), DataLoader(Samples(tree), 2), strict=True):
        assert repr(batch) == repr(expected)


@given(tree=TREES.filter(lambda tree: is_source(tree) and not has_names(tree)))
def test_store_of_columns_keeps_their_structure(tmp_path_factory, tree):
    root = tmp_path_factory.mktemp("trees") / "store"
    (batch,) = FastLoader(open_store(write_store(tree, root)), COUNT)
    assert repr(batch) == repr(rows_of(tree, slice(None)))


def test_column_alone_in_a_container_keeps_it():
    column = converted(torch.zeros(COUNT, 2, dtype=torch.uint8), mean=0.5, std=0.5)
    batch = next(iter(FastLoader(({"x": column}, (torch.arange(COUNT),)), 2)))
    assert [type(part) for part in batch] == [dict, tuple]
    assert batch[0]["x"].tolist() == [[-1.0, -1.0]] * 2
