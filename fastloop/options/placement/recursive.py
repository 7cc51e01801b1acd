"""`placement=recursive`: `.to` on every tensor of a tree, by plain recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastloop.core.move_tensors import rebuild
from fastloop.core.types import Tree, option


@option
class RecursivePlacement:
    """`.to` on every tensor of a tree, by recursion over dicts, lists, tuples and dataclasses.

    A tensordict moves as a whole; leaves that are not tensors stay unchanged.
    """

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        The function raises Unsupported for leaves that can't be moved, such as numpy arrays.
        """
        non_blocking = self.non_blocking

        def move_whole(collection: Any) -> Any:
            return collection.to(device, non_blocking=non_blocking)

        def place(tree: Tree) -> Tree:
            # The most frequent kinds come first. They are compared by type, because a subclass of a
            # tuple or a dict may be built in another way: rebuild() knows it.
            if isinstance(tree, torch.Tensor):
                return tree.to(device, non_blocking=non_blocking)
            kind = type(tree)
            if kind is dict:
                return {key: place(value) for key, value in tree.items()}
            if kind is list:
                return [place(value) for value in tree]
            if kind is tuple:
                return tuple([place(value) for value in tree])
            return rebuild(tree, place, move_whole)

        return place
