"""Trees of more than dicts, lists and tuples: their leaves, and how they are made anew.

A library of trees knows some containers and takes anything else for a leaf: what it takes for one
is looked into here, so that no tensor stays behind in a dataclass, a tensordict or a list of one's
own class. What holds data that can't be moved is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from datetime import date, time, timedelta, tzinfo  # noqa: TID251 - types, none is a clock
from enum import Enum
from numbers import Number
from pathlib import PurePath
from types import EllipsisType
from typing import Any
from uuid import UUID

import numpy as np
import optree
import torch
from tensordict import LazyStackedTensorDict, is_non_tensor, is_tensor_collection
from torch.nn.utils.rnn import PackedSequence

from fastloop.types import Tree, Unsupported

USUAL = (str, bytes, int, float, type(None))
UNUSUAL = (
    *(np.generic, Number, Enum, PurePath, torch.dtype, torch.device),
    *(date, time, timedelta, tzinfo, UUID, bytearray, range, slice, EllipsisType, type, re.Pattern),
)
"""Other leaves, which a placement leaves as they are."""

Map = Callable[[Any], Any]
PACKED = "a PackedSequence moves by its own .to; placement=recursive calls it"


def tree_leaves(tree: Tree) -> list[Any]:
    """Every leaf, those in dataclasses, tensordicts and subclasses of containers included.

    optree's order: keys are sorted, fields come as they are declared. None is no leaf.
    """
    found: list[Any] = []
    for leaf in optree.tree_leaves(tree):
        inside = None if isinstance(leaf, torch.Tensor) else _inside(leaf)
        if inside is None:
            found.append(leaf)
        else:
            found += tree_leaves(inside)
    return found


def rebuilt(node: Any, place: Map, move_whole: Map) -> Any:
    """A node that is no tensor, made anew of what `place` makes of its parts; a string, a number or
    None as it is.

    move_whole: what moves a tensordict. Raises Unsupported for what holds data that can't be moved.
    """
    if isinstance(node, USUAL):
        return node
    if is_tensor_collection(node):
        _check_all_tensors(node)
        return move_whole(node)
    if isinstance(node, PackedSequence):  # its batch_sizes have to stay on the CPU
        return move_whole(node)
    for kinds, make in MAKERS:
        if isinstance(node, kinds):
            return make(node, place)
    if _is_dataclass(node):
        return _dataclass(node, place)
    if isinstance(node, UNUSUAL):
        return node
    raise Unsupported(_why(node))


def mover(device: torch.device, non_blocking: bool, place: Map) -> Map:
    """What a tree_map has to do with whatever it takes for a leaf; `place` is that tree_map."""

    def move_whole(collection: Any) -> Any:
        return collection.to(device, non_blocking=non_blocking)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return rebuilt(leaf, place, move_whole)

    return move


def taken_apart(
    tree: Tree, device: torch.device
) -> tuple[list[torch.Tensor], Callable[[Iterable[torch.Tensor]], Tree]]:
    """The tensors of a tree, and what makes the same tree of others, which are on the device."""
    found: list[Any]
    found, structure = optree.tree_flatten(tree)
    if all(isinstance(leaf, torch.Tensor) for leaf in found):
        return found, lambda moved: _unflattened(structure, moved)
    found = []
    _walked(tree, lambda leaf: found.append(leaf) or leaf, None)

    def put_together(moved: Iterable[torch.Tensor]) -> Tree:
        left = iter(moved)
        return _walked(tree, lambda _: next(left), device)

    return found, put_together


def _walked(tree: Tree, move: Map, device: torch.device | None) -> Tree:
    def place(node: Any) -> Any:
        return move(node) if isinstance(node, torch.Tensor) else rebuilt(node, place, move_whole)

    def move_whole(collection: Any) -> Any:
        if isinstance(collection, PackedSequence):
            raise Unsupported(PACKED)
        return collection.apply(move, device=device or collection.device)

    return place(tree)


def _unflattened(structure: Any, moved: Iterable[torch.Tensor]) -> Tree:
    try:
        return optree.tree_unflatten(structure, moved)
    except ValueError as error:  # optree takes it for any other named tuple
        raise Unsupported(PACKED) if "batch_sizes" in str(error) else error from error


def _mapping(node: Any, place: Map) -> Any:
    moved = copy(node)  # whatever kind of dict it is, with the order of its keys
    for key, value in node.items():
        moved[key] = place(value)
    return moved


def _list(node: Any, place: Map) -> Any:
    moved = copy(node)
    moved[:] = [place(value) for value in node]
    return moved


def _tuple(node: Any, place: Map) -> tuple:
    values = [place(value) for value in node]
    return node._make(values) if hasattr(node, "_make") else type(node)(values)


def _deque(node: deque, place: Map) -> deque:
    moved = copy(node)
    moved.clear()
    moved.extend([place(value) for value in node])
    return moved


def _set(node: Any, place: Map) -> Any:
    return type(node)([place(value) for value in node])


MAKERS: tuple[tuple[tuple[type, ...], Callable[[Any, Map], Any]], ...] = (
    ((dict, UserDict), _mapping),
    ((list, UserList), _list),
    ((tuple,), _tuple),
    ((deque,), _deque),
    ((set, frozenset), _set),
)


def _dataclass(node: Any, place: Map) -> Any:
    moved = copy(node)  # not replace(): it would call __init__ and __post_init__ once more
    for name in _attributes(node):
        object.__setattr__(moved, name, place(getattr(node, name)))
    return moved


def _attributes(node: Any) -> list[str]:
    """The fields of a dataclass, and what else was set, such as a cached property."""
    names = [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]
    others = [name for name in getattr(node, "__dict__", ()) if not name.startswith("__")]
    return list(dict.fromkeys(names + others))


def _is_dataclass(node: Any) -> bool:
    return dataclasses.is_dataclass(node) and not isinstance(node, type)


def _inside(leaf: Any) -> Any:
    """What optree does not look into, as what it does; None for a leaf indeed."""
    if is_tensor_collection(leaf):
        return tuple(_parts(leaf)) if _is_dataclass(leaf) else dict(leaf.items())
    if _is_dataclass(leaf) and not hasattr(leaf, "dtype"):  # else it is told as a tensor would be
        return tuple([getattr(leaf, name) for name in _attributes(leaf)])
    if isinstance(leaf, dict | UserDict):
        return dict(leaf)
    return list(leaf) if isinstance(leaf, list | UserList | tuple | deque) else None


def _parts(collection: Any) -> Iterator[Any]:
    """The values of a tensordict, or the fields of a tensorclass."""
    if _is_dataclass(collection):
        return (getattr(collection, field.name) for field in dataclasses.fields(collection))
    return iter(collection.values())


def _check_all_tensors(collection: Any) -> None:
    """Raise Unsupported where a tensordict holds tensors in a list, as from_dict makes it."""
    if isinstance(collection, LazyStackedTensorDict):  # its own values may differ in shape
        for one in collection.tensordicts:
            _check_all_tensors(one)
        return
    for value in _parts(collection):
        if isinstance(value, torch.Tensor):
            continue
        if is_tensor_collection(value) and not is_non_tensor(value):
            _check_all_tensors(value)
            continue
        held = tree_leaves([value.tolist() if is_non_tensor(value) else value])
        if any(isinstance(leaf, torch.Tensor | np.ndarray) for leaf in held):
            said = f"a {type(collection).__name__} holds tensors in a {type(held).__name__}"
            raise Unsupported(f"{said}, and its .to leaves them behind: a dict of them would move")


def _why(node: Any) -> str:
    kind = f"{type(node).__module__}.{type(node).__qualname__}".removeprefix("builtins.")
    hint = ": torch.from_numpy makes a tensor of it" if isinstance(node, np.ndarray) else ""
    known = "dicts, lists, tuples, sets, dataclasses and tensordicts"
    return f"a placement moves tensors in {known}; it can't move a {kind}{hint}"
