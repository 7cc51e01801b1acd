"""`placement=tensordict`: all tensors of a tree in one TensorDict, moved by its `.to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from fastloop.core.move_tensors import split_tensors
from fastloop.core.types import Tree, option


@option
class TensorDictPlacement:
    """All tensors of a batch in one flat TensorDict, moved by its `.to`; then the batch is rebuilt.

    TensorDict.from_dict(batch).to(device) would not move the tensors of lists and tuples, which it
    keeps as non-tensor data, and would not return a dict.
    """

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        The function raises Unsupported for leaves that can't be moved, such as numpy arrays.
        """
        non_blocking = self.non_blocking

        def place(tree: Tree) -> Tree:
            tensors, join = split_tensors(tree, device)
            named = {str(number): tensor for number, tensor in enumerate(tensors)}
            moved: Any = TensorDict(named, batch_size=[]).to(device, non_blocking=non_blocking)
            return join(moved.values())

        return place
