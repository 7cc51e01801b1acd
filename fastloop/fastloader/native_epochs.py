"""Epochs of a tree whose batches the native core makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, UnbatchedSource
from fastloop.fastloader.native import (
    NativeColumns,
    NativeStream,
    StreamPlan,
    open_columns,
    open_pool,
)
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.source import ColumnSource


@dataclass
class NativeEpochs:
    """The columns of a tree, as the core reads them, and the memory of earlier epochs' batches."""

    columns: NativeColumns
    assemble: Callable[[tuple[torch.Tensor, ...]], Tree]
    """From a tensor of each column to a batch."""
    pool: Any

    def start(
        self, order: LoaderOrder, epoch: int, delivered: int, num_threads: int
    ) -> NativeStream:
        """Start the rest of an epoch, of which that many batches have been delivered."""
        native_order, start = order.native(epoch, delivered)
        if isinstance(native_order, Iterator):  # what a sampler draws at its begin is drawn here
            native_order = chain(list(islice(native_order, 1)), native_order)
        plan = StreamPlan(
            columns=self.columns,
            order=native_order,
            batch_size=0 if order.batch_sampler is not None else order.batch_size or 1,
            drop_last=order.drop_last,
            start=start,
            num_threads=num_threads,
            is_lazy=order.is_lazy,
        )
        return NativeStream(plan, self.pool)


def open_natively(source: BatchSource) -> NativeEpochs | None:
    """The source as the core makes its batches; None where only Python can."""
    is_unbatched = isinstance(source, UnbatchedSource)
    tree = source.source if is_unbatched else source
    columns = open_columns(tree.columns) if isinstance(tree, ColumnSource) else None
    if columns is None:
        return None
    unflatten = getattr(tree, "unflatten", None) or _first
    return NativeEpochs(
        columns, _without_batches(unflatten) if is_unbatched else unflatten, open_pool()
    )


def deliver_natively(
    stream: NativeStream,
    assemble: Callable[[tuple[torch.Tensor, ...]], Tree],
    state: dict[str, Any],
    finish: Callable[[], None],
) -> Iterator[Tree]:
    """The stream's batches, each counted in the state; closing it ends the stream's threads.

    finish: called after the last one.
    """
    try:
        for leaves in stream:
            state["delivered"] += 1
            batch = assemble(leaves)
            del leaves
            yield batch
            del batch  # or its memory would not be free while the next is made
        finish()
    finally:
        stream.close()


def _first(leaves: tuple[torch.Tensor, ...]) -> Tree:
    return leaves[0]


def _without_batches(
    unflatten: Callable[[Any], Tree],
) -> Callable[[tuple[torch.Tensor, ...]], Tree]:
    return lambda leaves: unflatten(tuple(leaf[0] for leaf in leaves))
