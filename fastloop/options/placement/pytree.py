"""`placement=pytree`: `.to` on each leaf of a tree, by torch's tree_map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from fastloop.core.containers import is_packed, is_tensor_collection
from fastloop.core.move_tensors import leaf_mover
from fastloop.core.types import Tree, option


@option
class PytreePlacement:
    """`.to` on each leaf of a tree, by torch.utils._pytree.tree_map, which has no public name.

    torch would rebuild a tensordict without its device, so a tensordict moves as a whole. torch
    would make a tuple of a torch.Size, so a torch.Size counts as a leaf. Containers unknown to
    torch (dataclasses, subclasses of dict) are opened and rebuilt.
    """

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        The function raises Unsupported for leaves that can't be moved, such as numpy arrays.
        """

        def place(tree: Tree) -> Tree:
            return tree_map(move, tree, is_leaf=_is_whole)

        move = leaf_mover(device, self.non_blocking, place)
        return place


def _is_whole(node: Any) -> bool:
    """True for a node that tree_map does not open."""
    return isinstance(node, torch.Size) or is_packed(node) or is_tensor_collection(node)
