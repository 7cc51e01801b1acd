"""Gather batches by index, for libraries that have threads but don't gather rows themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import torch
from torch.utils.data import default_collate

from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Collate, Store
from fastloop.core.types import Tree, Unsupported, name_of
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.rows import read_into_memory, tensors_of
from fastloop.data.torch_epochs import identity_collate


def batch_getter(
    store: Store | None, prepared: PreparedData, in_memory: bool, collate: Collate | None = None
) -> Callable[[np.ndarray], Tree]:
    """A function from int64 indices to a batch in newly allocated memory.

    With a store, np.take gathers the batch, from memory if `in_memory` is True, or else from the
    mapped files. Without a store, the calling thread decodes the samples, and `collate` makes the
    batch; None: torch's default_collate. No collate is called if the dataset's own `__getitems__`
    returns a batch.

    Raises Unsupported for rows that are neither arrays nor tensors, and for a collate if the
    dataset returns batches.
    """
    if store is None:
        samples = prepared.dataset.open()
        make_batch = _sample_collate(prepared, collate)
        return lambda indices: make_batch(fetch_samples(samples, indices.tolist()))
    # np.take copies whole rows, and releases the GIL meanwhile.
    rows = store.open(prepared.folder)
    leaves, structure = optree.tree_flatten((read_into_memory if in_memory else tensors_of)(rows))

    def gather(indices: np.ndarray) -> Tree:
        return optree.tree_unflatten(structure, [_take(leaf, indices) for leaf in leaves])

    return gather


def _sample_collate(prepared: PreparedData, collate: Collate | None) -> Callable[[Any], Tree]:
    """The function that makes a batch of the samples that the dataset returns.

    Raises Unsupported for a collate if the dataset returns whole batches.
    """
    if not prepared.returns_batches:
        return collate.collate if collate else default_collate
    if collate is not None:
        reason = f"the __getitems__ of {prepared.label} returns a whole batch"
        raise Unsupported(f"collate={name_of(collate)}: {reason}")
    return identity_collate


def _take(leaf: torch.Tensor, indices: np.ndarray) -> torch.Tensor:
    """A copy of the leaf's rows at these indices."""
    # numpy has no bfloat16.
    if leaf.dtype == torch.bfloat16:
        return leaf.index_select(0, torch.from_numpy(indices))
    return torch.from_numpy(np.take(leaf.numpy(), indices, axis=0))
