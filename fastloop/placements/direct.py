"""`placement=direct`: `.to` on each top-level field."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastloop.types import Tree, option


@option
class Direct:
    """A tuple of the batch's fields, each moved by one `.to`, as seed 000 does it."""

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that moves a tuple or list of tensors; TypeError for another tree."""
        non_blocking = self.non_blocking

        def place(batch: Tree) -> Tree:
            if not isinstance(batch, (tuple, list)):
                kind = type(batch).__name__
                raise TypeError(f"placement=direct moves a tuple of tensors, got {kind}")
            return tuple([field.to(device, non_blocking=non_blocking) for field in batch])

        return place
