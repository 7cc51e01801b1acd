"""`placement=direct`: `.to(device)` of each top-level field."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import torch

from fastloop.core.move_tensors import holds_tensors
from fastloop.core.types import Tree, Unsupported, option


@option
class DirectPlacement:
    """`.to(device)` of each top-level field of the batch; fields without tensors stay unchanged."""

    non_blocking: bool

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function that moves a tensor, or a list, tuple, named tuple or dict of tensors.

        The function raises Unsupported for other trees.
        """
        # A methodcaller calls .to without the cost of a further function in Python.
        move = methodcaller("to", device, non_blocking=self.non_blocking)

        def place(batch: Tree) -> Tree:
            try:
                return _map_fields(move, batch)
            except AttributeError:
                # A field has no .to: checking every field beforehand would slow every batch.
                return _map_fields(partial(_move_if_tensor, move, batch), batch)

        return place


def _map_fields(move: Callable[[Any], Any], batch: Tree) -> Tree:
    """The batch with each of its top-level fields moved; the batch moved if it has no fields."""
    # Compared by type, not by isinstance: a subclass may be built in another way.
    kind = type(batch)
    if kind is dict:
        return {key: move(field) for key, field in batch.items()}
    if kind is list or kind is tuple:
        return kind([move(field) for field in batch])
    if hasattr(kind, "_fields"):
        return kind(*[move(field) for field in batch])
    return move(batch)


def _move_if_tensor(move: Callable[[Any], Any], batch: Tree, field: Any) -> Any:
    """The field moved, or unchanged if it has no `.to`; raises Unsupported if it holds tensors."""
    if hasattr(field, "to"):
        return move(field)
    if holds_tensors(field):
        raise Unsupported(_reason(batch))
    return field


def _reason(batch: Tree) -> str:
    kind = type(batch).__name__
    if isinstance(batch, list | tuple):
        kind = f"({', '.join(type(field).__name__ for field in batch)})"
    needs = "placement=direct moves a tuple or a dict of tensors"
    return f"{needs}, got {kind}; placement=recursive moves any"
