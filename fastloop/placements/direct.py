"""`placement=direct`: `.to` on each top-level field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastloop.trees import UNUSUAL, USUAL
from fastloop.types import Tree, Unsupported, option


@option
class Direct:
    """A batch's fields, each moved by one `.to`, as seed 000 does it; a string, a number or None
    stays as it is."""

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that moves a list, tuple, named tuple or dict of tensors, or a tensor alone;
        Unsupported for another tree."""
        non_blocking = self.non_blocking

        def place(batch: Tree) -> Tree:
            kind = type(batch)
            try:
                if kind is list:
                    return [field.to(device, non_blocking=non_blocking) for field in batch]
                if kind is tuple:
                    return tuple([field.to(device, non_blocking=non_blocking) for field in batch])
                if kind is dict:
                    return {
                        k: one.to(device, non_blocking=non_blocking) for k, one in batch.items()
                    }
                if hasattr(kind, "_fields"):
                    return kind(*[field.to(device, non_blocking=non_blocking) for field in batch])
                return batch.to(device, non_blocking=non_blocking)
            except AttributeError as error:  # asking every field beforehand would cost every batch
                return _beside_others(batch, move, error)

        def move(field: Any) -> Any:
            if isinstance(field, (*USUAL, *UNUSUAL)):
                return field
            return field.to(device, non_blocking=non_blocking)

        return place


def _beside_others(batch: Tree, move: Callable[[Any], Any], error: AttributeError) -> Tree:
    """The same where some fields are no tensors; raises Unsupported for what has no `.to`."""
    kind = type(batch)
    try:
        if kind is dict:
            return {key: move(field) for key, field in batch.items()}
        if kind in (list, tuple):
            return kind([move(field) for field in batch])
        return kind(*[move(field) for field in batch]) if hasattr(kind, "_fields") else move(batch)
    except AttributeError:
        raise Unsupported(_why(batch)) from error


def _why(batch: Tree) -> str:
    given = type(batch).__name__
    if isinstance(batch, list | tuple):
        given = f"({', '.join(type(field).__name__ for field in batch)})"
    said = f"placement=direct moves a tuple or a dict of tensors, got {given}"
    return f"{said}; placement=recursive moves any"
