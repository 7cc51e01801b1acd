"""The epochs of a loader: by the native core where nothing else is to be done, else by Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

from fastloop.fastloader.checkpoint import RandomSources
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.epoch_order import EpochOrder, asks_for_lists, resolve_order
from fastloop.fastloader.large_files import may_read_directly
from fastloop.fastloader.native import StreamPlan
from fastloop.fastloader.native_epochs import NativeEpochs
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.position import State
from fastloop.fastloader.process_group import is_in_group
from fastloop.fastloader.python_epochs import PythonEpochs

ORDER_SETTINGS = "batch_size", "shuffle", "sampler", "_batch_sampler", "drop_last", "generator"
OTHER_SETTINGS = "seed", "rank", "world_size", "num_samples", "transform", "copy"
read_settings = attrgetter(*ORDER_SETTINGS, *OTHER_SETTINGS)
"""A loader's settings that may be assigned to between its epochs."""


@dataclass(frozen=True)
class LoaderEpochs:
    """The epochs of a loader whose settings stay as they are."""

    order: EpochOrder
    sources: RandomSources
    python: PythonEpochs
    native: NativeEpochs | None
    """None where Python makes the batches."""
    plan: StreamPlan | None
    """Of the native core's batches."""

    def start(
        self,
        state: State,
        finish: Callable[[], None],
        restored: AbstractContextManager[None],
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one. restored: what a sampler draws at its begin is drawn
        within this context.
        """
        order = self.order
        if self.native is None or self.plan is None or not isinstance(order, LoaderOrder):
            return self.python.start(order, state, finish, restored)
        return self.native.start(self.plan, order, state, finish, restored)


@dataclass
class EpochsCache:
    """The epochs of a loader, made anew where one of its settings has been assigned to.

    The first batch waits for all that is done at the begin of its epoch. The rows of the epoch
    before have left nothing of the interpreter in the processor's caches: a function that is called
    there takes 5 us, and these epochs as long as a batch to make.
    """

    _last: tuple[tuple[Any, ...], LoaderEpochs] | None = None

    def get(self, loader: Any) -> LoaderEpochs:
        """The epochs of the loader's settings; in a process group, and by Python, always new."""
        settings, last = read_settings(loader), self._last
        if last is not None and all(map(is_, settings, last[0])) and not is_in_group():
            return last[1]
        epochs = _make_epochs(loader)
        self._last = None if epochs.native is None else (settings, epochs)
        return epochs


def _make_epochs(loader: Any) -> LoaderEpochs:
    order, sampler = resolve_order(loader, loader._source), loader.sampler
    is_batched = loader.batch_size is not None or asks_for_lists(None, sampler)
    steps = loader._pipeline, loader.transform, is_batched, not loader.copy, loader._workers
    python = PythonEpochs(loader._source, *steps)
    given = sampler if loader._batch_sampler is None else loader._batch_sampler
    native = _choose_engine(loader._native, python, order)
    plan = None
    if native is not None and isinstance(order, LoaderOrder):
        plan = native.plan(order, loader._pipeline.tuning.num_threads)
    return LoaderEpochs(order, RandomSources(loader.generator, given), python, native, plan)


def _choose_engine(
    native: NativeEpochs | None, python: PythonEpochs, order: EpochOrder
) -> NativeEpochs | None:
    """The native core's epochs, where it makes the batches of this order."""
    is_plain = python.transform is None and python.pipeline.is_plain
    is_view = python.may_show_views and order.is_sequential
    if not is_plain or is_view or may_read_directly(python.source, order.shuffle):
        return None
    return native
