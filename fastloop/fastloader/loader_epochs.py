"""The epochs of a loader: made by the native core if rows are all that is asked for, else by
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_
from typing import Any

from fastloop.fastloader.checkpoint import RandomSources, States
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.epoch_order import EpochOrder, asks_for_lists, resolve_order
from fastloop.fastloader.large_files import may_read_directly
from fastloop.fastloader.native import StreamPlan
from fastloop.fastloader.native_epochs import NativeEpochs
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.paced_samplers import is_read_directly
from fastloop.fastloader.pipeline import SharedBatches
from fastloop.fastloader.position import PENDING, State
from fastloop.fastloader.process_group import is_in_group
from fastloop.fastloader.python_epochs import PythonEpochs
from fastloop.fastloader.torch_draws import (
    BASE_SEED,
    ORDER_SEED,
    DrawMoments,
    EpochBegin,
    EpochSeeds,
    begin_later,
    draw_before,
    epoch_seeds,
)
from fastloop.fastloader.torch_samplers import draw_leftover

Epoch = Iterator[Tree]
ORDER_SETTINGS = "batch_size", "shuffle", "sampler", "_batch_sampler", "drop_last", "generator"
OTHER_SETTINGS = "seed", "rank", "world_size", "num_samples", "transform", "copy"
read_settings = attrgetter(*ORDER_SETTINGS, *OTHER_SETTINGS)
"""A loader's settings that may be assigned to between its epochs."""


@dataclass(frozen=True)
class LoaderEpochs:
    """The epochs of a loader, as long as its settings stay as they are."""

    order: EpochOrder
    sources: RandomSources
    python: PythonEpochs
    native: NativeEpochs | None
    """None if Python makes the batches."""
    plan: StreamPlan | None
    """The plan of the native core's batches."""

    moments: DrawMoments

    def start(self, state: State, loaded: States | None, finish: Callable[[], None]) -> Epoch:
        """Iterate over the rest of an epoch, and count its batches in the state.

        loaded: the random states to restore, if a state is continued. finish: called after the last
        batch.
        """
        seed = self.order.seed
        if seed is None:
            return self._start_as_dataloader(state, loaded, finish)
        seeds = epoch_seeds(seed, state["epoch"])
        return self._make(state, finish, EpochBegin(seeds, self.sources.restore(loaded)))

    def _start_as_dataloader(
        self, state: State, loaded: States | None, finish: Callable[[], None]
    ) -> Epoch:
        """Begin an epoch with the draws of DataLoader, at its moments."""
        opened = None if loaded else self._open_directly()
        # DataLoader with workers opens the sampler when it is made and again when its epoch begins;
        # workers that persist begin later epochs with the second opening alone.
        opens_again = self.moments.lead and self.moments.base is None
        drawn = state["drawn_from"] = self.sources.draw_base(self.moments, loaded)
        if opens_again and opened is not None:
            opened = self._open_directly()
        begin = partial(self._begin_as_dataloader, state, loaded is not None, finish, opened)
        # Without workers DataLoader draws in the first next(): so does this epoch.
        if self.moments.lead or not self.order.draws_at_begin:
            return begin()
        state[PENDING] = partial(self.sources.pending_states, drawn)
        return begin_later(begin)

    def _open_directly(self) -> Iterator[Any] | None:
        """The iterator of a sampler, if DataLoader makes it before it draws its base seed; else
        None.
        """
        order = self.order
        if isinstance(order, LoaderOrder) and order.is_paced and is_read_directly(order):
            return iter(order.user_sampler)
        return None

    def _begin_as_dataloader(
        self,
        state: State,
        is_loaded: bool,
        finish: Callable[[], None],
        opened: Iterator[Any] | None,
    ) -> Epoch:
        state.pop(PENDING, None)
        drawn, order, epoch = state["drawn_from"], self.order, state["epoch"]
        if not is_loaded:
            drawn |= self.sources.states()
        if order.draws_seed and ORDER_SEED not in drawn:
            drawn[ORDER_SEED] = self.sources.draw_order_seed(drawn)
        is_drawn_anew = not self.moments.keeps_base
        # Several ranks draw no seed: they take DistributedSampler's, which is 0, plus the epoch.
        order_seed = drawn.get(ORDER_SEED, epoch)
        seeds = EpochSeeds(order_seed, drawn[BASE_SEED], is_base=True, is_drawn_anew=is_drawn_anew)
        lead = self.moments.lead
        restored = self.sources.restore(drawn if is_loaded else None)
        begin = EpochBegin(seeds, restored, lead, opened)
        delivered = int(state["delivered"])
        batches = self._make(state, finish, begin)
        if not isinstance(order, LoaderOrder) or not order.draws_leftover:
            return batches
        draw = partial(draw_leftover, order.num_samples, order.leftover_generator)
        # DataLoader's sampler is `lead` batches ahead of the loop when it comes to its end.
        count = max(0, order.last_draw - lead - delivered)
        return SharedBatches(draw_before(batches, count, draw))

    def _make(self, state: State, finish: Callable[[], None], begin: EpochBegin) -> Epoch:
        order = self.order
        if self.native is None or self.plan is None or not isinstance(order, LoaderOrder):
            return self.python.start(order, state, finish, begin)
        return self.native.start(self.plan, order, state, finish, begin)


@dataclass
class EpochsCache:
    """The epochs of a loader, made anew when one of its settings has been assigned to.

    The first batch waits for all work at the begin of its epoch. The rows of the epoch before have
    evicted the interpreter from the processor's caches: a function that is called there takes 5 us,
    and making these epochs takes as long as a batch.
    """

    _last: tuple[tuple[Any, ...], LoaderEpochs] | None = None

    def get(self, loader: Any) -> LoaderEpochs:
        """The epochs of the loader's settings; in a process group, and by Python, always new."""
        settings, last = read_settings(loader), self._last
        # Compared by identity: a comparison of tensors or of Datasets may be slow, or no bool. A
        # group of processes may have changed since.
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
        plan = native.plan(order, loader._pipeline.tuning.num_threads, loader.prefetch_factor)
    sources = RandomSources(loader.generator, given)
    return LoaderEpochs(order, sources, python, native, plan, loader._moments)


def _choose_engine(
    native: NativeEpochs | None, python: PythonEpochs, order: EpochOrder
) -> NativeEpochs | None:
    """The native core's epochs, if it makes the batches of this order; else None."""
    is_plain = python.transform is None and python.pipeline.is_plain
    is_view = python.may_show_views and order.is_sequential
    # The core asks for indices when it needs them, not when DataLoader would.
    if isinstance(order, LoaderOrder) and order.is_paced:
        return None
    if not is_plain or is_view or may_read_directly(python.source, order.shuffle):
        return None
    return native
