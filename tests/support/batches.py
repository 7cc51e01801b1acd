"""Batches as rows of bytes, a dataset as one batch, and the child processes."""

from __future__ import annotations

import optree
import psutil
import torch
from torch.utils.data import default_collate

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import is_shuffled
from fastloop.core.traits import LoaderTraits, traits_of


def rows(batches) -> list[tuple[bytes, ...]]:
    """Samples of the batches, each as the bytes of its leaves."""
    return [
        row
        for batch in batches
        for row in zip(*(bytes_of(leaf) for leaf in optree.tree_leaves(batch)), strict=True)
    ]


def has_planned_order(job, plan, epoch, delivered, stored) -> bool:
    """True if the delivered rows are the stored ones in the plan's order of the epoch; of a loader
    that shuffles itself, in another order than the stored one."""
    shuffles_itself = traits_of(LoaderTraits, job.loader).shuffles_itself
    if shuffles_itself and is_shuffled(plan):
        return sorted(delivered) == sorted(stored) and delivered != stored
    order = epoch_indices(plan.order, len(stored), plan.seed, epoch).tolist()
    return delivered == [stored[index] for index in order]


def bytes_of(leaf) -> list[bytes]:
    flat = leaf.contiguous().view(len(leaf), -1).view(torch.uint8).numpy()
    return [row.tobytes() for row in flat]


def sizes(batches) -> list[int]:
    return [len(optree.tree_leaves(batch)[0]) for batch in batches]


def collate_all(dataset):
    """All samples of the dataset in one batch."""
    samples = dataset.open()
    return default_collate([samples[index] for index in range(len(samples))])


def child_processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
