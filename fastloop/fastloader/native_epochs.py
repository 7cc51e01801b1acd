"""Epochs of a tree, with batches that the native core makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import torch

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.native import (
    Delivery,
    MemoryPools,
    NativeColumns,
    PieceTimes,
    StreamPlan,
    open_columns,
    open_stream,
)
from fastloop.fastloader.native_orders import NativeOrder, is_fed
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.position import State
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.torch_draws import EpochBegin


@dataclass
class NativeEpochs:
    """The columns of a tree, as the core reads them, and caches reused between epochs: batch memory
    and idle threads."""

    columns: NativeColumns
    assemble: Callable[[tuple[torch.Tensor, ...]], Tree] | None
    """(a tensor of each column) -> batch; None: the only column's tensor is the batch."""
    pools: MemoryPools = field(default_factory=MemoryPools)
    times: PieceTimes | None = None
    """Times of the pieces of batches, if they are recorded."""

    def record(self) -> PieceTimes:
        """Record the times of pieces in the epochs that begin from now on."""
        self.times = PieceTimes()
        return self.times

    def plan(self, order: LoaderOrder, num_threads: int, ahead: int | None = None) -> StreamPlan:
        """The plan of the epochs of an order; ahead: blocks for each thread, None chooses."""
        return StreamPlan(
            columns=self.columns,
            batch_size=0 if order.batch_sampler is not None else order.batch_size or 1,
            drop_last=order.drop_last,
            num_threads=num_threads,
            ahead=ahead,
            is_lazy=order.is_lazy,
        )

    def start(
        self,
        plan: StreamPlan,
        order: LoaderOrder,
        state: State,
        finish: Callable[[], None],
        begin: EpochBegin,
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one.
        """
        with begin.restored:
            native_order, start = _begin(order, begin.seeds.order, int(state["delivered"]))
        # The core adds to this number with each batch; Position reads it at any moment.
        state["delivered"] = np.array(state["delivered"], np.int64)
        delivery = Delivery(self.assemble, state["delivered"], finish, start)
        return open_stream(plan, native_order, self.pools, delivery, self.times)


def _begin(order: LoaderOrder, seed: int, delivered: int) -> tuple[NativeOrder, int]:
    """The order, and the first index to deliver. A sampler has made its first draws when this
    returns.
    """
    native_order, start = order.native(seed, delivered)
    if is_fed(native_order):
        # Pieces are drawn when they are asked for: the first one is drawn here, inside the context
        # that restores the generators.
        native_order = chain(list(islice(native_order, 1)), native_order)
    return native_order, start


def open_natively(source: object) -> NativeEpochs | None:
    """The source's epochs by the core; None if only Python can make its batches."""
    if not isinstance(source, ColumnSource):
        return None
    columns = open_columns(source.columns)
    return None if columns is None else NativeEpochs(columns, source.unflatten)
