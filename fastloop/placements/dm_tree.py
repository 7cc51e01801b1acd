"""`placement=dm_tree`: DeepMind's tree."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastloop.optional import check_found, imported
from fastloop.trees import mover
from fastloop.types import Tree, Unsupported, option

NEEDS = ("tree", "placement=dm_tree", "pip install 'fastloop[dm_tree]'")


@option
class DmTree:
    """tree.flatten, `.to` for each leaf, tree.unflatten_as: the steps of its map_structure, so that
    what fails in dm-tree is known from what fails on the device.

    It sorts the keys of every dict, and can't make a tensordict anew, which it takes for a mapping:
    Unsupported where that fails. A deque loses its maxlen, and what its class does not make of
    pairs (Counter, ChainMap) comes out as something else. What it does not know (dataclasses) is
    walked leaf by leaf.
    """

    non_blocking: bool

    def check_installed(self) -> None:
        """Raise Unsupported where dm-tree is absent."""
        check_found(*NEEDS)

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, and where dm-tree is absent."""
        dm_tree = imported(*NEEDS)

        def place(tree: Tree) -> Tree:
            try:
                leaves = dm_tree.flatten(tree)
            except Exception as error:
                raise Unsupported(_why(tree, error)) from error
            moved = [move(leaf) for leaf in leaves]
            try:
                return dm_tree.unflatten_as(tree, moved)
            except Exception as error:
                raise Unsupported(_why(tree, error)) from error

        move = mover(device, self.non_blocking, place)
        return place


def _why(tree: Tree, error: Exception) -> str:
    said = f"dm-tree can't make this {type(tree).__name__} anew ({error})"
    return f"placement=dm_tree: {said}; placement=recursive can"
