"""Open the containers of a tree that libraries for trees, such as optree, treat as leaves.

Such containers are dataclasses, tensordicts, and subclasses of dict, list and tuple, for example. A
container is opened to its parts, and can be rebuilt from other parts.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

PLAIN_LEAVES = (str, bytes, int, float, type(None))
"""Types of common leaves that hold no tensors."""


def is_packed(node: Any) -> bool:
    """True for a PackedSequence, a named tuple that must not be opened like other named tuples."""
    return isinstance(node, PackedSequence)


def open_container(node: Any) -> tuple[Any, Callable[[Any], Any]] | None:
    """The parts of a container, and a function that rebuilds the container from other parts.

    None if the node is not a container. The parts are a dict, list or tuple. The rebuilt container
    is a copy of the node with other items. It therefore keeps its class, its order of keys, and a
    default_factory or maxlen.
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
    # This is a class that a library or the user has registered with torch's pytree.
    if not pytree.tree_is_leaf(node):
        leaves, structure = pytree.tree_flatten(node)
        return leaves, structure.unflatten
    return None


def is_tensor_collection(node: Any) -> bool:
    """True for a tensordict or a tensorclass."""
    # Only a process that has imported tensordict can have a node of these types. Importing
    # tensordict here would take as long as importing torch.
    check = getattr(sys.modules.get("tensordict"), "is_tensor_collection", None)
    return check is not None and check(node)


def entries_of(collection: Any) -> dict[str, Any]:
    """The fields of a tensorclass in order of declaration, or the items of a tensordict."""
    if dataclasses.is_dataclass(collection):
        names = [field.name for field in dataclasses.fields(collection)]
        return {name: getattr(collection, name) for name in names}
    return dict(collection.items())


def _open_tuple(node: Any) -> tuple[Any, Callable[[Any], Any]]:
    """`open_container` for a tuple."""
    # batch_sizes is no part, because torch requires it to stay on the CPU.
    if isinstance(node, PackedSequence):
        parts = (node.data, node.sorted_indices, node.unsorted_indices)
        return parts, lambda moved: PackedSequence(moved[0], node.batch_sizes, *moved[1:])
    # The constructor of a named tuple takes its fields one by one, _make takes an iterable.
    return tuple(node), getattr(node, "_make", type(node))


def _with_items(node: Any, items: Mapping) -> Any:
    """A copy of a mapping with these items."""
    # A shallow copy of any other mapping may share its items with the node, so a new one is made.
    if not isinstance(node, dict | UserDict):
        return type(node)(items)
    rebuilt = copy(node)
    for key, value in items.items():
        rebuilt[key] = value
    return rebuilt


def _with_elements(node: Any, elements: Iterable[Any]) -> Any:
    """A copy of a list or deque with these elements."""
    rebuilt = copy(node)
    rebuilt.clear()
    rebuilt.extend(elements)
    return rebuilt


def _with_attributes(node: Any, attributes: Iterable[tuple[str, Any]]) -> Any:
    """A copy of a dataclass's instance with these attributes."""
    # dataclasses.replace would call __init__ and __post_init__ again; object.__setattr__ also sets
    # the fields of frozen classes.
    rebuilt = copy(node)
    for name, value in attributes:
        object.__setattr__(rebuilt, name, value)
    return rebuilt


def _attributes(node: Any) -> list[str]:
    """Names of a dataclass's fields and other set attributes, such as cached properties."""
    # A class with slots has no fields in __dict__, and a field may never have been set.
    names = [field.name for field in dataclasses.fields(node) if hasattr(node, field.name)]
    return list(dict.fromkeys([*names, *getattr(node, "__dict__", ())]))
