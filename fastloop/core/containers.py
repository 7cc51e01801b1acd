"""Containers that tree libraries treat as leaves: their parts, and rebuilding them."""

from __future__ import annotations

import dataclasses
import gc
import sys
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from fastloop.core.types import Unsupported

CODE = (type, ModuleType, FunctionType)
"""Kinds of objects that the whole program shares: nothing inside of them belongs to a leaf."""


def open_container(node: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    """The parts of a container as a dict, list or tuple, and a function that rebuilds the container
    from other parts; None if the node is no container.

    The rebuilt container is a copy of the node with other items, so that it keeps its class and a
    subclass's order of keys, default_factory or maxlen.
    """
    if isinstance(node, Mapping):
        return dict(node), lambda moved: _with_items(node, moved)
    if isinstance(node, list | UserList | deque):
        return list(node), lambda moved: _with_elements(node, moved)
    if isinstance(node, tuple):
        return _open_tuple(node)
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        names = _attributes(node)
        values = tuple([getattr(node, name) for name in names])
        return values, lambda moved: _with_attributes(node, zip(names, moved, strict=True))
    # a class that a library or the user has registered with torch's pytree
    if not pytree.tree_is_leaf(node):
        leaves, structure = pytree.tree_flatten(node)
        return leaves, structure.unflatten
    return None


def is_tensor_collection(node: Any) -> bool:
    """True for a tensordict or a tensorclass."""
    # Only a process that has imported tensordict can have one. Importing it here would take as
    # long as importing torch.
    check = getattr(sys.modules.get("tensordict"), "is_tensor_collection", None)
    return check is not None and check(node)


def entries_of(collection: Any) -> dict[str, Any]:
    """The fields of a tensorclass in order of declaration, or the items of a tensordict."""
    if dataclasses.is_dataclass(collection):
        names = [field.name for field in dataclasses.fields(collection)]
        return {name: getattr(collection, name) for name in names}
    return dict(collection.items())


def check_entries(collection: Any) -> None:
    """Raise Unsupported if a tensordict holds tensors in a list, as from_dict stores them."""
    from tensordict import LazyStackedTensorDict, is_non_tensor

    # reading an entry of a lazy stack would stack values that may differ in shape
    is_lazy = isinstance(collection, LazyStackedTensorDict)
    for entry in collection.tensordicts if is_lazy else entries_of(collection).values():
        value = entry.tolist() if is_non_tensor(entry) else entry
        if is_tensor_collection(value):
            check_entries(value)
        elif not isinstance(value, torch.Tensor) and holds_tensors(value):
            held = f"holds tensors in a {type(value).__name__}, which its .to does not move"
            raise Unsupported(f"a {type(collection).__name__} {held}: use a dict of them")


def holds_tensors(leaf: object) -> bool:
    """True if a tensor or an array is reachable from the leaf through any references."""
    # The garbage collector knows the references of every object, also of classes written in C. The
    # objects stay alive while the leaf does, so that their ids are unique.
    reached: set[int] = set()
    waiting = [leaf]
    while waiting:
        node = waiting.pop()
        if isinstance(node, torch.Tensor | np.ndarray):
            return True
        if id(node) not in reached and not isinstance(node, CODE):
            reached.add(id(node))
            waiting += gc.get_referents(node)
    return False


def _open_tuple(node: Any) -> tuple[Any, Callable[[Any], Any]]:
    # torch requires batch_sizes of a PackedSequence to stay on the CPU
    if isinstance(node, PackedSequence):
        parts = (node.data, node.sorted_indices, node.unsorted_indices)
        return parts, lambda moved: PackedSequence(moved[0], node.batch_sizes, *moved[1:])
    # the constructor of a named tuple takes its fields one by one, _make takes an iterable
    return tuple(node), getattr(node, "_make", type(node))


def _with_items(node: Any, items: Mapping) -> Any:
    # a shallow copy of any other mapping may share the items with the node
    if not isinstance(node, dict | UserDict):
        return type(node)(items)
    rebuilt = copy(node)
    for key, value in items.items():
        rebuilt[key] = value
    return rebuilt


def _with_elements(node: Any, elements: Iterable[Any]) -> Any:
    rebuilt = copy(node)
    rebuilt.clear()
    rebuilt.extend(elements)
    return rebuilt


def _with_attributes(node: Any, attributes: Iterable[tuple[str, Any]]) -> Any:
    # dataclasses.replace would call __init__ and __post_init__ again; object.__setattr__ also sets
    # the fields of frozen classes
    rebuilt = copy(node)
    for name, value in attributes:
        object.__setattr__(rebuilt, name, value)
    return rebuilt


def _attributes(node: Any) -> list[str]:
    """Names of a dataclass's fields and of other attributes set, such as cached properties."""
    # fields of classes with slots are not in __dict__, and a field may never have been set
    names = [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]
    return list(dict.fromkeys([*names, *getattr(node, "__dict__", ())]))
