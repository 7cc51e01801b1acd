"""`placement=direct`: `.to(device)` of each top-level field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastloop.core.move_tensors import holds_tensors
from fastloop.core.types import Tree, Unsupported, option


@option
class DirectPlacement:
    """`.to(device)` of each top-level field of the batch; fields without tensors stay unchanged."""

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that moves a tensor, or a list, tuple, named tuple or dict of tensors.

        The function raises Unsupported for other trees.
        """
        non_blocking = self.non_blocking

        def place(batch: Tree) -> Tree:
            kind = type(batch)
            try:
                # Types are compared, and isinstance is not used, because a subclass may be built in
                # another way. The calls of .to are written out: one function for all fields, such
                # as a methodcaller, makes each batch a tenth slower.
                if kind is list:
                    return [field.to(device, non_blocking=non_blocking) for field in batch]
                if kind is tuple:
                    return tuple([field.to(device, non_blocking=non_blocking) for field in batch])
                if kind is dict:
                    return {
                        key: field.to(device, non_blocking=non_blocking)
                        for key, field in batch.items()
                    }
                if hasattr(kind, "_fields"):
                    return kind(*[field.to(device, non_blocking=non_blocking) for field in batch])
                return batch.to(device, non_blocking=non_blocking)
            except AttributeError:
                # A field has no .to. Checking every field beforehand would slow every batch.
                return _place_mixed(batch, move)

        def move(field: Any) -> Any:
            return field.to(device, non_blocking=non_blocking)

        return place


def _place_mixed(batch: Tree, move: Callable[[Any], Any]) -> Tree:
    """The batch, with fields that have no `.to` unchanged; raises Unsupported if such a field holds
    tensors."""

    def move_any(field: Any) -> Any:
        if hasattr(field, "to"):
            return move(field)
        if holds_tensors(field):
            raise Unsupported(_reason(batch))
        return field

    kind = type(batch)
    if kind is dict:
        return {key: move_any(field) for key, field in batch.items()}
    if kind in (list, tuple):
        return kind([move_any(field) for field in batch])
    if hasattr(kind, "_fields"):
        return kind(*[move_any(field) for field in batch])
    return move_any(batch)


def _reason(batch: Tree) -> str:
    kind = type(batch).__name__
    if isinstance(batch, list | tuple):
        kind = f"({', '.join(type(field).__name__ for field in batch)})"
    needs = "placement=direct moves a tuple or a dict of tensors"
    return f"{needs}, got {kind}; placement=recursive moves any"
