"""The groups of batches that an epoch consists of, and the source that they are made from."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice, repeat

import numpy as np

from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.large_files import use_direct_reads
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.source import ColumnSource, sequential_source
from fastloop.fastloader.tuning import GROUP_BYTES, Tuning


def plan_epoch(
    source: BatchSource, order: LoaderOrder, epoch: int, tuning: Tuning
) -> tuple[BatchSource, Iterable[BatchGroup]]:
    """The source of this rank's batches, and their groups."""
    if order.batch_sampler is not None:
        is_grouped = tuning.group_batches > 1
        max_rows = max(1, GROUP_BYTES // max(1, sum(source.row_nbytes))) if is_grouped else 1
        return source, order.sampler_groups(max_rows)
    pieces = order.pieces(epoch)
    early = list(islice(pieces, 2))  # the first may be the source's last, short block
    first = max(early, key=len, default=np.empty(0, np.int64))
    pieces = chain(early, pieces)
    batch_counts = repeat(tuning.group_batches)
    direct_source = None
    if isinstance(source, ColumnSource) and order.shuffle is not True:  # it has no stretches
        num_pieces = max(1, tuning.num_threads) * (tuning.prefetch_factor + 2) + 2
        direct_source = use_direct_reads(source, first, num_pieces)
    if direct_source is not None:
        # a part of a shuffled piece has rows of all its stretches: read the piece as a whole
        is_rising = bool((np.diff(first) > 0).all())
        return direct_source, order.groups(pieces, batch_counts if is_rising else None)
    return source, order.groups(pieces, batch_counts)


def view_source(source: BatchSource, order: LoaderOrder) -> BatchSource:
    """A source whose batches are views of the memory where the order allows that."""
    if not order.is_sequential or not isinstance(source, ColumnSource):
        return source
    return sequential_source(source) or source
