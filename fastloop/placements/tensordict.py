"""`placement=tensordict`: all tensors of a tree in one TensorDict, moved by its `.to`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from fastloop.trees import taken_apart
from fastloop.types import Tree, option


@option
class AsTensorDict:
    """A flat TensorDict is made of each batch, and the batch of what it has moved.

    Seed 004's TensorDict.from_dict(batch).to(device) leaves behind the tensors of every list and
    tuple, which it keeps as data that is no tensor; and what comes is no dict.
    """

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to one of the same types, with its tensors on the device;
        Unsupported for what can't be moved, such as a numpy array."""
        non_blocking = self.non_blocking

        def place(tree: Tree) -> Tree:
            tensors, put_together = taken_apart(tree, device)
            named = {str(number): tensor for number, tensor in enumerate(tensors)}
            moved: Any = TensorDict(named, batch_size=[]).to(device, non_blocking=non_blocking)
            return put_together(moved.values())

        return place
