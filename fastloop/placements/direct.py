"""`placement=direct`: `.to` on each top-level field."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastloop.types import Tree, Unsupported, option


@option
class Direct:
    """A batch's fields, each moved by one `.to`, as seed 000 does it."""

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that moves a list, tuple or named tuple of tensors, or a tensor alone;
        Unsupported for another tree."""
        non_blocking = self.non_blocking

        def place(batch: Tree) -> Tree:
            kind = type(batch)
            try:
                if kind is list:
                    return [field.to(device, non_blocking=non_blocking) for field in batch]
                if kind is tuple:
                    return tuple([field.to(device, non_blocking=non_blocking) for field in batch])
                if hasattr(kind, "_fields"):
                    return kind(*[field.to(device, non_blocking=non_blocking) for field in batch])
                return batch.to(device, non_blocking=non_blocking)
            except AttributeError as error:  # asking every field beforehand would cost every batch
                raise Unsupported(_why(batch)) from error

        return place


def _why(batch: Tree) -> str:
    given = type(batch).__name__
    if isinstance(batch, list | tuple):
        given = f"({', '.join(type(field).__name__ for field in batch)})"
    return f"placement=direct moves a tuple of tensors, got {given}; placement=recursive moves any"
