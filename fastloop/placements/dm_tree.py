"""`placement=dm_tree`: DeepMind's tree, by its map_structure."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastloop.optional import check_found, imported
from fastloop.trees import mover
from fastloop.types import Tree, Unsupported, option

NEEDS = ("tree", "placement=dm_tree", "pip install 'fastloop[dm_tree]'")


@option
class DmTree:
    """tree.map_structure with `.to` for each leaf.

    It takes a tensordict for a mapping that it can't make anew, and sorts the keys of every dict:
    both are Unsupported where that fails. What it does not know (dataclasses) is walked leaf by
    leaf.
    """

    non_blocking: bool

    def check_installed(self) -> None:
        """Raise Unsupported where dm-tree is absent."""
        check_found(*NEEDS)

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, and where dm-tree is absent."""
        map_structure = imported(*NEEDS).map_structure

        def place(tree: Tree) -> Tree:
            try:
                return map_structure(move, tree)
            except (TypeError, ValueError, KeyError) as error:
                said = f"dm-tree can't make a {type(tree).__name__} anew ({error})"
                raise Unsupported(f"placement=dm_tree: {said}; placement=recursive can") from error

        move = mover(device, self.non_blocking, place)
        return place
