"""`placement=pytree`: torch's own tree_map, as seed 004 calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from fastloop.trees import mover
from fastloop.types import Tree, option


@option
class Pytree:
    """torch.utils._pytree.tree_map with `.to` for each leaf; torch gives its pytree no public name.

    A tensordict moves as one: torch would take it apart and put it together without its device, and
    make a torch.Size a tuple.
    What torch does not know (dataclasses, dicts of other classes) is walked leaf by leaf.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, such as a numpy array."""

        def place(tree: Tree) -> Tree:
            return tree_map(move, tree, is_leaf=_is_whole)

        move = mover(device, self.non_blocking, place)
        return place


def _is_whole(node: Any) -> bool:
    return isinstance(node, (torch.Size, PackedSequence)) or is_tensor_collection(node)
