"""Every tensor of a tree, wherever a placement would find it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from tensordict import is_tensor_collection

from fastloop.types import Tree


def mapped(function: Callable[[torch.Tensor], torch.Tensor], tree: Tree) -> Tree:
    """A tree of the same types, with function(tensor) for every tensor; other leaves stay."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, list):
        return [mapped(function, value) for value in tree]
    if isinstance(tree, tuple):
        values = [mapped(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    if is_tensor_collection(tree):
        return tree.apply(function)
    parts = _parts(tree)
    return _with(tree, {name: mapped(function, value) for name, value in parts}) if parts else tree


def _parts(tree: Tree) -> list[tuple[Any, Tree]]:
    """Keys or names of fields, and what is there."""
    if isinstance(tree, dict):
        return list(tree.items())
    if is_dataclass(tree) and not isinstance(tree, type):
        return [(one.name, getattr(tree, one.name)) for one in fields(tree)]
    return []


def _with(tree: Tree, values: dict[Any, Tree]) -> Tree:
    made = copy(tree)  # whatever kind of dict it is, with the order of its keys
    if isinstance(made, dict):
        made.update(values)
        return made
    for name, value in values.items():
        object.__setattr__(made, name, value)  # also of a frozen one
    return made
