"""`placement=optree`: optree's tree_map, which is written in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.trees import mover
from fastloop.types import Tree, option


@option
class Optree:
    """optree.tree_map with `.to` for each leaf.

    A tensordict is a leaf to it and moves as one. What else it does not know (dataclasses, dicts of
    other classes) is walked leaf by leaf.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, such as a numpy array."""

        def place(tree: Tree) -> Tree:
            try:
                return optree.tree_map(move, tree)
            except ValueError:  # of a PackedSequence, a named tuple that has to move as one
                return optree.tree_map(move, tree, is_leaf=_is_packed)

        move = mover(device, self.non_blocking, place)
        return place


def _is_packed(node: Any) -> bool:
    return isinstance(node, PackedSequence)
