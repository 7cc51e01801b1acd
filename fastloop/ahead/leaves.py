"""Every tensor of a tree, wherever a placement would find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.trees import rebuilt
from fastloop.types import Tree


def mapped(function: Callable[[torch.Tensor], torch.Tensor], tree: Tree) -> Tree:
    """A tree of the same types, with function(tensor) for every tensor; other leaves stay.

    Raises Unsupported for what holds data that no placement could move.
    """

    def place(node: Any) -> Any:
        return function(node) if isinstance(node, torch.Tensor) else rebuilt(node, place, whole)

    def whole(node: Any) -> Any:
        if isinstance(node, PackedSequence):
            parts: list[Any] = [None if part is None else function(part) for part in node]
            return PackedSequence(*parts)
        return node.apply(function)

    return place(tree)
