"""NativeEpochs, the engine that starts epochs with batches made by the native core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from fastloop.fastloader.checkpoint import EpochProgress
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.native_order import NativeOrder, is_fed
from fastloop.fastloader.native_stream import (
    Delivery,
    StreamPlan,
    WorkTimes,
    open_stream,
)
from fastloop.fastloader.order import EpochOrder, LoaderOrder
from fastloop.fastloader.reading import NativeSource
from fastloop.fastloader.torch_draws import EpochStart


@dataclass(frozen=True)
class NativeEpochs:
    """The native core: its threads make the batches, and never run Python."""

    source: NativeSource
    plan: StreamPlan
    name: ClassVar[str] = "native"

    def record(self) -> WorkTimes:
        """Record the times of pieces in the epochs that begin from now on."""
        self.source.times = WorkTimes()
        return self.source.times

    def start(
        self,
        order: EpochOrder,
        progress: EpochProgress,
        finish: Callable[[], None],
        epoch_start: EpochStart,
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in `progress`.

        finish: called after the last batch.
        """
        assert isinstance(order, LoaderOrder)
        with epoch_start.restored:
            native_order, start = _begin(order, epoch_start.seeds.order, int(progress.delivered))
        # The core adds to this number with each batch, and the loop may read it at any moment.
        progress.delivered = delivered = np.array(progress.delivered, np.int64)
        source = self.source
        delivery = Delivery(source.assemble, delivered, finish, start)
        return open_stream(self.plan, native_order, source.pools, delivery, source.times)


def _begin(order: LoaderOrder, seed: int, delivered: int) -> tuple[NativeOrder, int]:
    """The order, and the first index to deliver. A sampler makes its first draws in this call."""
    native_order, start = order.native(seed, delivered)
    if is_fed(native_order):
        # A piece is drawn when it is asked for. The first one is asked for here, inside the context
        # that restores the random generators.
        native_order = chain(list(islice(native_order, 1)), native_order)
    return native_order, start
