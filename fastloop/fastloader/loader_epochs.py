"""LoaderEpochs, which begins the epochs of a loader as long as its settings stay as they are.

If the loader has a seed, the seeds of all epochs follow from it. With seed=None an epoch draws the
numbers that DataLoader would draw, at the same moments, see torch_draws.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from operator import is_
from typing import Any

from fastloop.fastloader.checkpoint import (
    EpochProgress,
    Randomness,
    RandomStates,
    State,
    order_settings,
)
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.epoch_engines import choose_engine
from fastloop.fastloader.epoch_iterators import SharedBatches, begin_later, give_length
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.native_epochs import NativeEpochs
from fastloop.fastloader.order import EpochOrder, LoaderOrder, order_of_indices, order_of_stream
from fastloop.fastloader.paced_samplers import is_read_directly
from fastloop.fastloader.process_group import is_in_group
from fastloop.fastloader.python_epochs import PythonEpochs
from fastloop.fastloader.reading import Reading
from fastloop.fastloader.torch_draws import (
    BASE_SEED,
    ORDER_SEED,
    DrawMoments,
    EpochSeeds,
    EpochStart,
    OrderDraws,
    draw_before,
    epoch_seeds,
)

Epoch = Iterator[Tree]


@dataclass(frozen=True)
class LoaderEpochs:
    """The epochs of a loader, as long as its settings stay as they are."""

    settings: LoaderSettings
    order: EpochOrder
    randomness: Randomness
    """The generator and the sampler that the order is drawn from."""
    engine: NativeEpochs | PythonEpochs
    """The native core or Python, which makes the batches."""
    moments: DrawMoments
    """The moments at which epochs draw random numbers, if seed is None."""

    def are_of(self, values: tuple[Any, ...], num_samples: int | None) -> bool:
        """True if these are the epochs of a loader with these settings and this number of
        samples."""
        # A group of processes may have been made since, which changes the rank.
        if num_samples != self.order.num_samples or is_in_group():
            return False
        # Compared by identity: a comparison of tensors or of Datasets may be slow, or return no
        # bool.
        return all(map(is_, values, vars(self.settings).values()))

    def begin_state(self, epoch: int) -> State:
        """The state of an epoch that begins; with seed=None it has yet to draw."""
        states = {} if self.order.seed is None else self.randomness.states()
        return State(epoch=epoch, drawn_from=states, settings=self._order_settings)

    def waiting_state(self, epoch: int) -> State:
        """The state of an epoch that has not begun."""
        if self.order.seed is None:
            kept = self.moments.base
            states = self.randomness.pending_states({} if kept is None else {BASE_SEED: kept})
        else:
            states = self.randomness.states()
        return State(epoch=epoch, drawn_from=states, settings=self._order_settings)

    @cached_property
    def _order_settings(self) -> dict[str, Any]:
        """The order's ORDER_SETTINGS, found once to save time in short epochs."""
        return order_settings(self.order)

    def start(
        self, progress: EpochProgress, loaded: RandomStates | None, finish: Callable[[], None]
    ) -> Epoch:
        """Iterate over the rest of an epoch, and count its batches in `progress`.

        loaded: the random states to restore; None: the epoch continues no state. finish: called
        after the last batch.
        """
        return give_length(self._start(progress, loaded, finish), self.order)

    def _start(
        self, progress: EpochProgress, loaded: RandomStates | None, finish: Callable[[], None]
    ) -> Epoch:
        seed = self.order.seed
        if seed is None:
            return self._start_as_dataloader(progress, loaded, finish)
        seeds = epoch_seeds(seed, progress.epoch)
        epoch_start = EpochStart(seeds, self.randomness.restore(loaded))
        return self.engine.start(self.order, progress, finish, epoch_start)

    def _start_as_dataloader(
        self, progress: EpochProgress, loaded: RandomStates | None, finish: Callable[[], None]
    ) -> Epoch:
        """Begin an epoch with the draws of DataLoader, at its moments."""
        # The draws are found once, because finding them takes some of the time of a short epoch.
        draws = self.order.draws
        opened = None if loaded else self._open_directly(draws)
        # With workers DataLoader opens the sampler twice, when it creates its iterator and when the
        # iterator begins the epoch. Persistent workers keep the iterator, so that later epochs open
        # the sampler once.
        opens_again = self.moments.lead and self.moments.base is None
        drawn = progress.drawn_from = self.randomness.draw_base(self.moments, loaded)
        if opens_again and opened is not None:
            opened = self._open_directly(draws)
        is_loaded = loaded is not None
        begin = partial(self._begin_as_dataloader, progress, draws, is_loaded, finish, opened)
        # Without workers DataLoader draws in the first next(): so does this epoch.
        if self.moments.lead or not draws.at_start:
            return begin()
        progress.pending = partial(self.randomness.pending_states, drawn)
        return begin_later(begin)

    def _open_directly(self, draws: OrderDraws) -> Iterator[Any] | None:
        """The iterator of a sampler, if DataLoader makes it before it draws its base seed; else
        None.
        """
        order = self.order
        if isinstance(order, LoaderOrder) and draws.is_paced and is_read_directly(order):
            return iter(order.user_sampler)
        return None

    def _begin_as_dataloader(
        self,
        progress: EpochProgress,
        draws: OrderDraws,
        is_loaded: bool,
        finish: Callable[[], None],
        opened: Iterator[Any] | None,
    ) -> Epoch:
        """The epoch that draws its numbers as DataLoader does, or has them from a loaded state."""
        drawn = progress.drawn_from
        progress.pending = None
        order = self.order
        if not is_loaded:
            drawn |= self.randomness.states()
        if draws.has_seed and ORDER_SEED not in drawn:
            drawn[ORDER_SEED] = self.randomness.draw_order_seed(drawn)
        is_drawn_each_epoch = not self.moments.keeps_base
        # Several ranks draw no seed: they take DistributedSampler's, which is 0, plus the epoch.
        order_seed = drawn.get(ORDER_SEED, progress.epoch)
        seeds = EpochSeeds(
            order_seed, drawn[BASE_SEED], is_base=True, is_drawn_each_epoch=is_drawn_each_epoch
        )
        lead = self.moments.lead
        restored = self.randomness.restore(drawn if is_loaded else None)
        epoch_start = EpochStart(seeds, restored, lead, opened)
        delivered = int(progress.delivered)
        batches = self.engine.start(order, progress, finish, epoch_start)
        leftover = draws.leftover
        if leftover is None:
            return batches
        # DataLoader's sampler is `lead` batches ahead of the loop, and draws the leftover when it
        # comes to its end. It reaches its end in iter() if batch `leftover.batch` is one of the
        # first `lead` batches that are left.
        count = leftover.batch - lead - delivered
        if count < 0:
            leftover.draw()
            return batches
        return SharedBatches(draw_before(batches, count, leftover.draw))


def open_epochs(settings: LoaderSettings, reading: Reading) -> LoaderEpochs:
    """The epochs of a loader with these settings.

    Raises ValueError for settings of the order that are invalid with this source, or with this
    process's rank.
    """
    source = reading.source
    if isinstance(source, IterableSource):
        order = order_of_stream(settings, source.num_samples, is_sharded=source.is_sharded)
    else:
        order = order_of_indices(settings, len(source))
    randomness = Randomness(settings.generator, settings.user_sampler)
    engine = choose_engine(settings, reading, order)
    return LoaderEpochs(settings, order, randomness, engine, reading.moments)
