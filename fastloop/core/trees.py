"""Find the leaves of trees of tensors, read their bytes, and stack the leaves of samples.

Libraries for trees, such as optree, open the containers that they know, and treat everything else
as a leaf. The functions here also find the tensors in a dataclass, a tensordict or a subclass of
dict.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import optree
import torch
from torch.utils import _pytree as pytree

from fastloop.core.containers import (
    PLAIN_LEAVES,
    entries_of,
    is_tensor_collection,
    open_container,
)
from fastloop.core.types import Tree

TEXTS_AND_NUMBERS = (str, bytes, int, float)
"""Types of the entries of a plain column, which holds no tensors."""
FIRST_ENTRIES = 8
"""Number of first entries that decide whether a list is a plain column of texts or numbers. Only so
few are read because a batch may have columns of thousands of tokens."""


def tree_leaves(tree: Tree) -> list[Any]:
    """Every leaf, including those in dataclasses, tensordicts and subclasses of containers.

    The leaves come in optree's order: the keys of a dict are sorted, those of an OrderedDict are
    not, and fields are in the order of declaration. None is not a leaf.
    """
    leaves: list[Any] = []
    for leaf in optree.tree_leaves(tree):
        parts = None if isinstance(leaf, torch.Tensor) else _parts(leaf)
        if parts is None:
            leaves.append(leaf)
        else:
            leaves += tree_leaves(parts)
    return leaves


def find_tensors(tree: Tree) -> list[torch.Tensor]:
    """Every tensor of a tree, in optree's order, without visiting each text and number.

    A list or tuple that begins with eight texts or numbers, or has nothing else, is taken to have
    no tensors.

    >>> find_tensors({"ids": [list(range(512))] * 64, "label": torch.zeros(64)})[0].shape
    torch.Size([64])
    """
    tensors: list[torch.Tensor] = []
    for leaf in optree.tree_leaves(tree, is_leaf=_is_plain_column):
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
        elif not _is_plain_column(leaf) and (parts := _parts(leaf)) is not None:
            tensors += find_tensors(parts)
    return tensors


def _is_plain_column(node: Any) -> bool:
    """True for a list or tuple with only texts and numbers among its first entries."""
    return isinstance(node, list | tuple) and all(
        isinstance(entry, TEXTS_AND_NUMBERS) for entry in node[:FIRST_ENTRIES]
    )


def read_bytes(tree: Tree) -> int:
    """Read all bytes of a tree of tensors on the host, and return the number of bytes.

    Reading is as fast as memory permits.
    """
    nbytes = 0
    for leaf in tree_leaves(tree):
        flat = leaf.contiguous().view(-1).view(torch.uint8).numpy()
        # A sum has to load every byte. Machine words are added, because adding single bytes would
        # take longer than fetching them from memory.
        words = len(flat) // 8 * 8
        flat[:words].view(np.int64).sum()
        flat[words:].sum()
        nbytes += len(flat)
    return nbytes


def stack_leaves(structure: Any, samples: Iterable[Sequence[torch.Tensor]]) -> Tree:
    """The batch of these samples.

    structure: torch's TreeSpec of a sample. samples: the leaves of each sample.
    """
    leaves = [torch.stack(leaf) for leaf in zip(*samples, strict=True)]
    return pytree.tree_unflatten(leaves, structure)


def _parts(leaf: Any) -> Tree | None:
    """The parts of a leaf of optree, in containers that optree opens; None if it has no parts."""
    if is_tensor_collection(leaf):
        entries = entries_of(leaf)
        return tuple(entries.values()) if dataclasses.is_dataclass(leaf) else entries
    # An object with a dtype has no parts: it is an array, or a data.ragged.RaggedTensor.
    if isinstance(leaf, PLAIN_LEAVES) or hasattr(leaf, "dtype"):
        return None
    container = open_container(leaf)
    return container[0] if container else None
