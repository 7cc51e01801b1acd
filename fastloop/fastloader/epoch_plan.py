"""The groups of batches that an epoch consists of, and the source that they are made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat

import numpy as np

from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.large_files import use_direct_reads
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.order_ahead import OrderAhead
from fastloop.fastloader.source import ColumnSource, sequential_source
from fastloop.fastloader.tuning import GROUP_BYTES, Tuning

FIRST_GROUPS = 8
"""After this many groups of an epoch there is time to draw the next epoch's order."""


def plan_epoch(
    source: BatchSource, order: LoaderOrder, epoch: int, tuning: Tuning, orders: OrderAhead
) -> tuple[BatchSource, Iterable[BatchGroup]]:
    """The source of this rank's batches, and their groups."""
    row_nbytes, is_groupable = sum(source.row_nbytes), source.is_groupable
    if order.batch_sampler is not None:
        max_rows = max(1, GROUP_BYTES // max(1, row_nbytes)) if is_groupable else 1
        return source, order.sampler_groups(max_rows)
    pieces = order.pieces(epoch, orders.get)
    early = list(islice(pieces, 2))  # the first may be the source's last, short block
    first = max(early, key=len, default=np.empty(0, np.int64))
    pieces = chain(early, pieces)
    counts = tuning.batch_counts(row_nbytes, order.batch_size or 1, order.count_estimate)
    batch_counts = counts if is_groupable else repeat(1)
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


def draw_next_order(
    groups: Iterator[BatchGroup], order: LoaderOrder, epoch: int, orders: OrderAhead
) -> Iterator[BatchGroup]:
    """The groups; after the first ones the order of that epoch, the next, begins to be drawn."""
    yield from islice(groups, FIRST_GROUPS)
    order.draw_ahead(epoch, orders)
    yield from groups
