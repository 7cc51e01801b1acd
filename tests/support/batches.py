"""Batches as rows of bytes, a dataset as one batch, and the child processes."""

from __future__ import annotations

import optree
import psutil
import torch
from torch.utils.data import default_collate


def rows(batches) -> list[tuple[bytes, ...]]:
    """Samples of the batches, each as the bytes of its leaves."""
    return [
        row
        for batch in batches
        for row in zip(*(bytes_of(leaf) for leaf in optree.tree_leaves(batch)), strict=True)
    ]


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
