"""Find the leaves of trees of tensors, and open the containers that hold the leaves.

Libraries for trees, such as optree, open the containers that they know, and treat everything else
as a leaf. The functions here open such leaves too, so that no tensor is left behind in a dataclass,
a tensordict or a subclass of dict.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import optree
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from fastloop.core.types import Tree

TEXTS_AND_NUMBERS = (str, bytes, int, float)
"""Types of the entries of a plain column, which holds no tensors."""
PLAIN_LEAVES = (*TEXTS_AND_NUMBERS, type(None))
"""Common leaves other than tensors, which hold no tensors."""
FIRST_ENTRIES = 8
"""Number of first entries that decide whether a list is a plain column of texts or numbers."""


def tree_leaves(tree: Tree) -> list[Any]:
    """Every leaf, including those in dataclasses, tensordicts and subclasses of containers.

    The leaves come in optree's order: keys are sorted, fields are in the order of declaration. None
    is not a leaf.
    """
    leaves: list[Any] = []
    for leaf in optree.tree_leaves(tree):
        parts = None if isinstance(leaf, torch.Tensor) else _parts(leaf)
        if parts is None:
            leaves.append(leaf)
        else:
            leaves += tree_leaves(parts)
    return leaves


def find_tensors(tree: Tree) -> list[torch.Tensor]:
    """Every tensor of a tree, in optree's order, without visiting each text and number.

    A list or tuple that begins with eight texts or numbers, or has nothing else, is taken to have
    no tensors.

    >>> find_tensors({"ids": [list(range(512))] * 64, "label": torch.zeros(64)})[0].shape
    torch.Size([64])
    """
    tensors: list[torch.Tensor] = []
    for leaf in optree.tree_leaves(tree, is_leaf=_is_plain_column):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif not _is_plain_column(leaf) and (parts := _parts(leaf)) is not None:
            tensors += find_tensors(parts)
    return tensors


def _is_plain_column(node: Any) -> bool:
    """True for a list or tuple with only texts and numbers among its first entries."""
    return isinstance(node, list | tuple) and all(
        isinstance(entry, TEXTS_AND_NUMBERS) for entry in node[:FIRST_ENTRIES]
    )


def read_bytes(tree: Tree) -> int:
    """Read all bytes of a tree of tensors on the host, and return the number of bytes.

    Reading is as fast as memory permits.
    """
    nbytes = 0
    for leaf in tree_leaves(tree):
        flat = leaf.contiguous().view(-1).view(torch.uint8).numpy()
        # A sum has to load every byte. Machine words are added, because adding single bytes would
        # take longer than fetching them from memory.
        words = len(flat) // 8 * 8
        flat[:words].view(np.int64).sum()
        flat[words:].sum()
        nbytes += len(flat)
    return nbytes


def stack_leaves(structure: Any, samples: Iterable[Sequence[torch.Tensor]]) -> Tree:
    """The batch of these samples.

    structure: torch's TreeSpec of a sample. samples: the leaves of each sample.
    """
    leaves = [torch.stack(leaf) for leaf in zip(*samples, strict=True)]
    return pytree.tree_unflatten(leaves, structure)


def is_packed(node: Any) -> bool:
    """True for a PackedSequence, a named tuple that must not be opened like other named tuples."""
    return isinstance(node, PackedSequence)


def _parts(leaf: Any) -> Tree | None:
    """The parts of a leaf of optree, in containers that optree opens; None if it has no parts."""
    if is_tensor_collection(leaf):
        entries = entries_of(leaf)
        return tuple(entries.values()) if dataclasses.is_dataclass(leaf) else entries
    # An object with a dtype has no parts: it is an array, or a data.ragged.RaggedTensor.
    if isinstance(leaf, PLAIN_LEAVES) or hasattr(leaf, "dtype"):
        return None
    container = open_container(leaf)
    return container[0] if container else None


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
