"""`placement=optree`: `.to` on each leaf of a tree, by optree's tree_map, which is in C++."""

from __future__ import annotations

from collections.abc import Callable

import optree
import torch

from fastloop.core.containers import is_packed
from fastloop.core.move_tensors import leaf_mover
from fastloop.core.types import Tree, option


@option
class OptreePlacement:
    """`.to` on each leaf of a tree, by optree.tree_map.

    A tensordict is a leaf and moves as a whole. Other containers unknown to optree (dataclasses,
    subclasses of dict) are opened and rebuilt.
    """

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        The function raises Unsupported for leaves that can't be moved, such as numpy arrays.
        """

        def place(tree: Tree) -> Tree:
            try:
                return optree.tree_map(move, tree)
            except ValueError:
                # optree can't rebuild a PackedSequence. Checking every node beforehand would slow
                # every batch.
                return optree.tree_map(move, tree, is_leaf=is_packed)

        move = leaf_mover(device, self.non_blocking, place)
        return place
