"""`placement=recursive`: seed 004's move_to, every tensor of a tree by its own `.to`."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from tensordict import is_tensor_collection

from fastloop.types import Tree, option


@option
class Recursive:
    """Dicts, lists, tuples and named tuples are walked and made anew; a tensordict moves as one.

    Where 004 raises a TypeError, another leaf (a string, a number, None) stays as it is.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device."""
        non_blocking = self.non_blocking

        def place(tree: Tree) -> Tree:
            if isinstance(tree, torch.Tensor):
                return tree.to(device, non_blocking=non_blocking)
            if isinstance(tree, dict):
                moved = copy(tree)  # whatever kind of dict it is, with the order of its keys
                moved.update([(key, place(value)) for key, value in tree.items()])
                return moved
            if isinstance(tree, list):
                return [place(value) for value in tree]
            if isinstance(tree, tuple):
                values = [place(value) for value in tree]
                return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
            if is_tensor_collection(tree):
                return tree.to(device, non_blocking=non_blocking)
            return tree

        return place
