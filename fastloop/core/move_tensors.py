"""Rebuild trees with each tensor replaced, for example by its copy on another device.

Leaves other than tensors pass through unchanged, as in torch's pytree. A leaf that is an array, or
that holds tensors or arrays, is rejected, because these would silently stay on their device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import optree
import torch

from fastloop.core.containers import (
    PLAIN_LEAVES,
    entries_of,
    is_packed,
    is_tensor_collection,
    open_container,
)
from fastloop.core.types import Tree, Unsupported

Move = Callable[[Any], Any]

SHARED_KINDS = (type, ModuleType, FunctionType)
"""Kinds of objects that the whole program shares: nothing inside of them belongs to a leaf."""


def map_tensors(
    function: Callable[[torch.Tensor], torch.Tensor], tree: Tree, device: torch.device | None = None
) -> Tree:
    """A tree of the same types with function(tensor) in place of every tensor; other leaves stay.

    device: new device of tensordicts; None: unchanged.
    Raises Unsupported for a leaf that holds tensors or arrays.
    """

    def rebuild_inside(node: Tree) -> Tree:
        return optree.tree_map(move, node, is_leaf=is_packed)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return function(leaf)
        return rebuild(leaf, rebuild_inside, apply)

    def apply(collection: Any) -> Any:
        return collection.apply(function, device=device or collection.device)

    return rebuild_inside(tree)


def split_tensors(
    tree: Tree, device: torch.device
) -> tuple[list[torch.Tensor], Callable[[Iterable[torch.Tensor]], Tree]]:
    """The tensors of a tree, and a function that rebuilds the tree from other tensors on the
    device."""
    leaves: list[Any]
    leaves, structure = optree.tree_flatten(tree, is_leaf=is_packed)
    # The usual batch needs only optree's own flatten.
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return leaves, structure.unflatten
    # Else the tree is traversed twice, in the same order: once to collect the tensors inside of
    # containers that optree treats as leaves, and once to put the new tensors in their places.
    tensors: list[torch.Tensor] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(collect, tree)

    def join(moved: Iterable[torch.Tensor]) -> Tree:
        remaining = iter(moved)
        return map_tensors(lambda _: next(remaining), tree, device)

    return tensors, join


def leaf_mover(device: torch.device, non_blocking: bool, rebuild_inside: Move) -> Move:
    """A function for a tree_map to call on each leaf.

    rebuild_inside: applies that tree_map to the parts of a leaf that is a container.
    """

    def move_whole(collection: Any) -> Any:
        return collection.to(device, non_blocking=non_blocking)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return rebuild(leaf, rebuild_inside, move_whole)

    return move


def rebuild(node: Any, rebuild_inside: Move, move_whole: Move) -> Any:
    """Rebuild a node that is not a tensor; a leaf is unchanged.

    rebuild_inside: rebuilds the parts of a container. move_whole: moves a tensordict.
    Raises Unsupported for a leaf that holds tensors or arrays.
    """
    if isinstance(node, PLAIN_LEAVES):
        return node
    if is_tensor_collection(node):
        check_entries(node)
        return move_whole(node)
    if container := open_container(node):
        parts, close = container
        return close(rebuild_inside(parts))
    if holds_tensors(node):
        raise Unsupported(_leaf_error(node))
    return node


def check_entries(collection: Any) -> None:
    """Raise Unsupported if a tensordict holds tensors in a list, as from_dict stores them."""
    from tensordict import LazyStackedTensorDict, is_non_tensor

    # Reading an entry of a lazy stack would stack values that may differ in shape.
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
        if id(node) not in reached and not isinstance(node, SHARED_KINDS):
            reached.add(id(node))
            waiting += gc.get_referents(node)
    return False


def _leaf_error(leaf: Any) -> str:
    kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
    hint = ": torch.from_numpy makes a tensor of it" if isinstance(leaf, np.ndarray) else ""
    known = "dicts, lists, tuples, dataclasses and tensordicts"
    return f"a placement moves tensors in {known}; it can't move a {kind}{hint}"
