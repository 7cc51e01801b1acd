"""Trees of tensors: their leaves, and rebuilding them with other tensors.

Tree libraries open the containers they know and treat everything else as a leaf. Here such leaves
are opened too, so that no tensor is left behind in a dataclass, a tensordict or a subclass of dict.
Remaining leaves pass through unchanged, as in torch's pytree, but are rejected if they hold
tensors, which would silently stay on their device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import optree
import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.core.containers import (
    check_entries,
    entries_of,
    holds_tensors,
    is_tensor_collection,
    open_container,
)
from fastloop.core.types import Tree, Unsupported

PLAIN = (str, bytes, int, float, type(None))
"""Common leaves other than tensors, which hold no tensors."""

Move = Callable[[Any], Any]


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
