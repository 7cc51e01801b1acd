"""`placement=recursive`: seed 004's move_to, every tensor of a tree by its own `.to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastloop.trees import rebuilt
from fastloop.types import Tree, option


@option
class Recursive:
    """Dicts, lists, tuples and dataclasses are walked and made anew; a tensordict moves as one.

    Where 004 raises a TypeError, a string, a number and None stay as they are.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, such as a numpy array."""
        non_blocking = self.non_blocking

        def move_whole(collection: Any) -> Any:
            return collection.to(device, non_blocking=non_blocking)

        def place(tree: Tree) -> Tree:
            if isinstance(tree, torch.Tensor):
                return tree.to(device, non_blocking=non_blocking)
            kind = type(tree)
            if kind is dict:
                return {key: place(value) for key, value in tree.items()}
            if kind is list:
                return [place(value) for value in tree]
            if kind is tuple:
                return tuple([place(value) for value in tree])
            return rebuilt(tree, place, move_whole)

        return place
