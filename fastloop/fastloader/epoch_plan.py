"""The groups of batches that an epoch consists of, and the source that they are made from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from fastloop.fastloader.batching import group_batches
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.large_files import may_read_directly, use_direct_reads
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.tuning import Tuning

Groups = Iterator[list[np.ndarray]]
"""For each group, the indices of its batches, which are made together."""


def plan_epoch(
    source: BatchSource, order: LoaderOrder, position: tuple[int, int], tuning: Tuning
) -> tuple[BatchSource, Groups]:
    """The source of this rank's batches, and their groups.

    position: the seed of the epoch's order, and how many of its batches have been delivered.
    """
    has_pieces = order.batch_sampler is None
    if isinstance(source, ColumnSource) and has_pieces and may_read_directly(source, order.shuffle):
        return _plan_direct_reads(source, order, position, tuning)
    return source, group_batches(order.batches(*position), tuning.group_rows)


def _plan_direct_reads(
    source: ColumnSource, order: LoaderOrder, position: tuple[int, int], tuning: Tuning
) -> tuple[BatchSource, Groups]:
    pieces = map(list, order.batches_by_piece(*position))
    # The first piece may be the source's last block, which may be too short to judge by.
    early = list(islice(pieces, 2))
    first = np.concatenate(max(early, key=len, default=[np.empty(0, np.int64)]))
    pieces = chain(early, pieces)
    # Each thread makes one and has prefetch_factor ahead; the loop and the sampler have a few more.
    num_pieces = max(1, tuning.num_threads) * (tuning.prefetch_factor + 2) + 2
    direct_source = use_direct_reads(source, first, num_pieces)
    if direct_source is not None and (np.diff(first) <= 0).any():
        # A part of a shuffled piece has rows of all its stretches: the piece is read as a whole.
        return direct_source, pieces
    batches = chain.from_iterable(pieces)
    return direct_source or source, group_batches(batches, tuning.group_rows)
