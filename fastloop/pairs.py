"""Which two tensors of a batch a model is trained or asked with: its input, and its target."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter

import torch

from fastloop.digest import leaves_of
from fastloop.network import shown
from fastloop.trees import tree_leaves
from fastloop.types import Leaves, Pair, Tree, Unsupported


def paired(benchmark: str, batch: Tree, check: Callable[[Leaves], None]) -> tuple[Leaves, Pair]:
    """dtype and shape of (input, target) in such batches, and what takes the two out of one.

    Of a tuple or a list of two the input is the first. Elsewhere a name may mean anything, and it
    is the one with which `check` raises no Unsupported, as it does for samples that the model can't
    be fed with. Raises that where neither will do, and Unsupported where both would.
    """
    refusals, found = [], []
    for way in _ways(batch):
        leaves = leaves_of(way(batch))
        try:
            check(leaves)
        except Unsupported as why:
            refusals.append(why)
        else:
            found.append((leaves, way))
    if not found:
        raise refusals[0]
    leaves, way = found[0]
    if len(found) == 1 and len(leaves) == 2:
        return leaves, way
    got = shown(leaves)
    if len(found) > 1:
        got = f"{_named(batch)} of {got}, either of which may be the input: a tuple has it first"
    needs = f"benchmark={benchmark} needs (input, target), got {got}"
    raise Unsupported(f"{needs}; benchmark=traversal takes any")


def _ways(batch: Tree) -> list[Pair]:
    """All there are; one where the order is known, or where there is no pair."""
    count = len(tree_leaves(batch))
    if isinstance(batch, tuple | list) and len(batch) == count == 2:
        return [tuple if all(isinstance(one, torch.Tensor) for one in batch) else tree_leaves]
    if count != 2:
        return [tree_leaves]
    names = [name for name, value in _fields(batch).items() if isinstance(value, torch.Tensor)]
    if len(names) != 2:
        return [tree_leaves, lambda batch: tree_leaves(batch)[::-1]]
    take = itemgetter if isinstance(batch, Mapping) else attrgetter
    return [take(*names), take(*reversed(names))]


def _fields(batch: Tree) -> dict[str, object]:
    """By name, what a mapping or a dataclass holds itself."""
    if isinstance(batch, Mapping):
        return {name: batch[name] for name in batch.keys()}  # noqa: SIM118 - a TensorDict iterates over its rows
    if not dataclasses.is_dataclass(batch):
        return {}
    return {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}


def _named(batch: Tree) -> str:
    """Its type, and the names in it."""
    return f"{type(batch).__name__}({', '.join(map(str, _fields(batch)))})"
