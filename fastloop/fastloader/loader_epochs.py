"""The epochs of a loader: by the native core where nothing else is to be done, else by Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.epoch_order import EpochOrder
from fastloop.fastloader.large_files import may_read_directly
from fastloop.fastloader.native_epochs import NativeEpochs
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.position import State
from fastloop.fastloader.python_epochs import PythonEpochs


@dataclass(frozen=True)
class LoaderEpochs:
    """The two ways in which a loader's batches are made."""

    native: NativeEpochs | None
    """None where only Python can make them."""
    python: PythonEpochs

    def start(
        self,
        order: EpochOrder,
        state: State,
        finish: Callable[[], None],
        restored: AbstractContextManager[None],
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one. restored: what a sampler draws at its begin is drawn
        within this context.
        """
        native = self.native_for(order)
        if native is None or not isinstance(order, LoaderOrder):
            return self.python.start(order, state, finish, restored)
        num_threads = self.python.pipeline.tuning.num_threads
        return native.start(order, state, finish, restored, num_threads)

    def native_for(self, order: EpochOrder) -> NativeEpochs | None:
        """The native core's epochs, where it makes the batches of this order."""
        python = self.python
        is_plain = python.transform is None and python.pipeline.is_plain
        is_view = python.may_show_views and order.is_sequential
        if not is_plain or is_view or may_read_directly(python.source, order.shuffle):
            return None
        return self.native
