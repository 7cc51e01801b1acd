"""`placement=direct`: `.to` on each top-level field."""

from __future__ import annotations

import torch

from fastloop.types import Tree, option


@option
class Direct:
    """A tuple of the batch's fields, each moved by one `.to`, as seed 000 does it."""

    non_blocking: bool

    def __call__(self, batch: Tree, device: torch.device) -> Tree:
        """The fields of a tuple or list of tensors on the device. Raises TypeError for another
        tree."""
        if not isinstance(batch, (tuple, list)):
            raise TypeError(
                f"placement=direct moves a tuple of tensors, got {type(batch).__name__}"
            )
        return tuple([field.to(device, non_blocking=self.non_blocking) for field in batch])
