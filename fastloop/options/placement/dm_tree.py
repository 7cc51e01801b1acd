"""`placement=dm_tree`: `.to` on each leaf of a tree, by DeepMind's dm-tree."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastloop.core.move_tensors import leaf_mover
from fastloop.core.optional_libraries import Library
from fastloop.core.types import Tree, Unsupported, option

LIBRARY = Library("tree", "placement=dm_tree", "pip install 'fastloop[dm_tree]'")


@option
class DmTreePlacement:
    """`.to` on each leaf of a tree, by dm-tree: tree.flatten, `.to`, tree.unflatten_as.

    These are the steps of dm-tree's map_structure. They are called one by one, so that errors of
    dm-tree can be told from errors of the device.

    dm-tree sorts the keys of dicts. A deque loses its maxlen. Mappings that are not built from
    pairs (Counter, ChainMap) change. A tensordict is Unsupported, because dm-tree takes a
    tensordict for a mapping, and can't rebuild it. Dataclasses, which dm-tree does not know, are
    opened and rebuilt.
    """

    non_blocking: bool
    """The argument `non_blocking` of `.to`. True: a copy from page-locked memory may still run when
    `.to` returns."""

    def check_installed(self) -> None:
        """Raise Unsupported if dm-tree is not installed."""
        LIBRARY.check()

    def to(self, device: torch.device) -> Callable[[Tree], Tree]:
        """A function from a tree to a tree of the same types, with its tensors on the device.

        Raises Unsupported without dm-tree; the function raises it for leaves that can't be moved.
        """
        dm_tree = LIBRARY.load()

        def place(tree: Tree) -> Tree:
            try:
                leaves = dm_tree.flatten(tree)
            except Exception as error:
                # dm-tree calls the containers' own methods, which may raise anything.
                raise Unsupported(_reason(tree, error)) from error
            moved = [move(leaf) for leaf in leaves]
            try:
                return dm_tree.unflatten_as(tree, moved)
            except Exception as error:
                raise Unsupported(_reason(tree, error)) from error

        move = leaf_mover(device, self.non_blocking, place)
        return place


def _reason(tree: Tree, error: Exception) -> str:
    """The message for a tree for which dm-tree raised the error."""
    reason = f"dm-tree can't rebuild this {type(tree).__name__} ({error})"
    return f"placement=dm_tree: {reason}; placement=recursive can"
