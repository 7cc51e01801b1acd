"""`placement=optree`: optree's tree_map, which is written in C++."""

from __future__ import annotations

from collections.abc import Callable

import optree
import torch

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
            return optree.tree_map(move, tree)

        move = mover(device, self.non_blocking, place)
        return place
