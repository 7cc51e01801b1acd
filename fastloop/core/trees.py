"""Trees of tensors: their leaves, and rebuilding them with other tensors.

Tree libraries open the containers they know and treat everything else as a leaf. Here such leaves
are opened too, so that no tensor is left behind in a dataclass, a tensordict or a subclass of dict.
Remaining leaves pass through unchanged, as in torch's pytree, but are rejected if they hold
tensors, which would silently stay on their device.
"""

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
import optree
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from fastloop.core.types import Tree, Unsupported

PLAIN = (str, bytes, int, float, type(None))
"""Common leaves other than tensors, which hold no tensors."""

Move = Callable[[Any], Any]

CODE = (type, ModuleType, FunctionType)
"""Kinds of objects that the whole program shares: nothing inside of them belongs to a leaf."""


def tree_leaves(tree: Tree) -> list[Any]:
    """Every leaf, including those in dataclasses, tensordicts and subclasses of containers.

    They come in optree's order: keys are sorted, fields are in the order of declaration. None is no
    leaf.
    """
    leaves: list[Any] = []
    for leaf in optree.tree_leaves(tree):
        parts = None if isinstance(leaf, torch.Tensor) else _parts(leaf)
        if parts is None:
            leaves.append(leaf)
        else:
            leaves += tree_leaves(parts)
    return leaves


def read_bytes(tree: Tree) -> int:
    """Read all bytes of a tree on the host, at memory speed, and return their number."""
    nbytes = 0
    for leaf in tree_leaves(tree):
        flat = leaf.contiguous().view(-1).view(torch.uint8).numpy()
        # A sum has to load every byte. It goes by machine words, as summing single bytes would
        # take longer than fetching them from memory.
        words = len(flat) // 8 * 8
        flat[:words].view(np.int64).sum()
        flat[words:].sum()
        nbytes += len(flat)
    return nbytes


def map_tensors(
    function: Callable[[torch.Tensor], torch.Tensor], tree: Tree, device: torch.device | None = None
) -> Tree:
    """A tree of the same types with function(tensor) in place of every tensor; other leaves stay.

    device: new device of tensordicts; None: unchanged.
    Raises Unsupported for a leaf that holds tensors.
    """

    def place(node: Tree) -> Tree:
        return optree.tree_map(move, node, is_leaf=is_packed)

    def move(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, torch.Tensor) else rebuild(leaf, place, apply)

    def apply(collection: Any) -> Any:
        return collection.apply(function, device=device or collection.device)

    return place(tree)


def split_tensors(
    tree: Tree, device: torch.device
) -> tuple[list[torch.Tensor], Callable[[Iterable[torch.Tensor]], Tree]]:
    """The tensors of a tree, and a function that rebuilds the tree from others on the device."""
    leaves: list[Any]
    leaves, structure = optree.tree_flatten(tree, is_leaf=is_packed)
    # the usual batch needs only optree's own flatten
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return leaves, structure.unflatten
    # Else the tree is traversed twice, in the same order: once to collect the tensors inside of
    # containers that optree treats as leaves, and once to put the others in their places.
    tensors: list[torch.Tensor] = []
    map_tensors(lambda tensor: tensors.append(tensor) or tensor, tree)

    def join(moved: Iterable[torch.Tensor]) -> Tree:
        remaining = iter(moved)
        return map_tensors(lambda _: next(remaining), tree, device)

    return tensors, join


def leaf_mover(device: torch.device, non_blocking: bool, place: Move) -> Move:
    """A function for a tree_map to call on each leaf; `place` applies that tree_map to a tree."""

    def move_whole(collection: Any) -> Any:
        return collection.to(device, non_blocking=non_blocking)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return rebuild(leaf, place, move_whole)

    return move


def rebuild(node: Any, place: Move, move_whole: Move) -> Any:
    """Rebuild a node that is no tensor from the parts that `place` returns; a leaf is unchanged.

    move_whole: moves a tensordict. Raises Unsupported for a leaf that holds tensors or arrays.
    """
    if isinstance(node, PLAIN):
        return node
    if is_tensor_collection(node):
        check_entries(node)
        return move_whole(node)
    if container := open_container(node):
        parts, close = container
        return close(place(parts))
    if holds_tensors(node):
        raise Unsupported(_leaf_error(node))
    return node


def is_packed(node: Any) -> bool:
    """True for a PackedSequence: a named tuple that must not be opened as one."""
    return isinstance(node, PackedSequence)


def _parts(leaf: Any) -> Tree | None:
    """The parts of a leaf of optree, in containers that optree opens; None for a true leaf."""
    if is_tensor_collection(leaf):
        entries = entries_of(leaf)
        return tuple(entries.values()) if dataclasses.is_dataclass(leaf) else entries
    # arrays, and data.ragged.JaggedTensor, which has a dtype as well
    if isinstance(leaf, PLAIN) or hasattr(leaf, "dtype"):
        return None
    container = open_container(leaf)
    return container[0] if container else None


def _leaf_error(leaf: Any) -> str:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    hint = ": torch.from_numpy makes a tensor of it" if isinstance(leaf, np.ndarray) else ""
    known = "dicts, lists, tuples, dataclasses and tensordicts"
    return f"a placement moves tensors in {known}; it can't move a {kind}{hint}"


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
    # The garbage collector knows the references of every object, even of classes written in C. The
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
