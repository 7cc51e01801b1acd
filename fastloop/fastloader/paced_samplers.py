"""Read samplers that the user has written at the same moments as DataLoader reads them.

A sampler may draw random numbers each time that it is asked for an index. If FastLoader asked it
earlier than DataLoader does, the program would get other random numbers afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, RandomSampler

from fastloop.fastloader.batching import check_indices, to_array, to_integers
from fastloop.fastloader.order import LoaderOrder, OrderKind
from fastloop.fastloader.torch_draws import draw_seed

OVER_ARRAYS = tuple(type(iter(each)) for each in ([], (), range(0), range(1 << 63)))
"""Types of iterators over indices that exist already: nothing is drawn when they are read."""


def is_read_directly(order: LoaderOrder) -> bool:
    """True if DataLoader itself iterates over the sampler: of batches, or of single samples."""
    return order.batch_sampler is not None or order.batch_size is None


def without_sampler(order: LoaderOrder, opened: Iterator[Any]) -> LoaderOrder | None:
    """The order with the sampler replaced by the list of its indices.

    opened: the iterator of the sampler. The result is None unless it iterates over a list, a tuple
    or a range, which have their indices already, or if it is the user's own sampler.
    """
    # The user may pass an iterator as the sampler. It must not be read to its end here, because the
    # next epoch gets the indices that this one leaves.
    if type(opened) not in OVER_ARRAYS or opened is order.user_sampler:
        return None
    name = "sampler" if order.batch_sampler is None else "batch_sampler"
    return replace(order, **{name: list(opened)})


def read_batches(order: LoaderOrder, opened: Iterator[Any]) -> Iterator[Any]:
    """The batches of indices of the opened sampler, read as DataLoader reads it."""
    if order.batch_sampler is not None:
        return opened
    if order.batch_size is None:
        return (to_integers([index]) for index in opened)
    return map(to_integers, BatchSampler(opened, order.batch_size, order.drop_last))


def draw_batches(order: LoaderOrder, seed: int | None) -> Iterator[list[int]]:
    """The batches of an epoch's indices, drawn when DataLoader's batch sampler would draw them.

    seed: the order's seed, if it has been drawn.
    """
    sampler = _torch_sampler(order) if seed is None else None
    if sampler is not None:
        # torch's own samplers draw at exactly DataLoader's moments.
        yield from BatchSampler(sampler, order.rows_per_batch, order.drop_last)
        return
    if seed is None and order.draws.has_seed:
        seed = draw_seed(None)
    yield from (batch.tolist() for batch in order.batches(seed or 0))


def _torch_sampler(order: LoaderOrder) -> Iterable[int] | None:
    """The sampler from which DataLoader reads this order; None if order.batches() is read instead.

    None for several ranks, for a source without samples, and for all kinds that are not named here.
    """
    if order.world_size > 1 or not order.num_samples:
        return None
    match order.kind:
        case OrderKind.SAMPLER:
            return order.sampler  # pyright: ignore[reportReturnType]
        case OrderKind.SEQUENTIAL:
            return range(order.num_samples)
        case OrderKind.SEEDED | OrderKind.DRAWN:
            return RandomSampler(range(order.num_samples), generator=order.generator)
        case _:
            return None


class PacedGroups:
    """An iterator over groups of one batch each, which keeps DataLoader's pace of drawing.

    The constructor draws `lead` batches; `draw_for` draws a further one for each that is delivered.
    If nothing is drawn ahead, iteration draws a batch. Drawing raises IndexError for an index out
    of bounds, and any error that the sampler raises.
    """

    def __init__(self, batches: Iterator[Any], num_samples: int, lead: int) -> None:
        self._batches = batches
        self._num_samples = num_samples
        self._lead = lead
        self._drawn: deque[list[np.ndarray]] = deque()
        self._count = 0
        self._is_ended = False
        self.draw_for(0)

    def draw_for(self, delivered: int) -> None:
        """Draw the batches that DataLoader has drawn by the time it delivers batch `delivered`."""
        while self._count < self._lead + delivered and not self._is_ended:
            self._draw()

    def _draw(self) -> None:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_ended = True
            return
        self._count += 1
        self._drawn.append([check_indices(to_array(batch), self._num_samples)])

    def __iter__(self) -> Iterator[list[np.ndarray]]:
        return self

    def __next__(self) -> list[np.ndarray]:
        # Without a lead the batch is drawn by the next() that delivers it.
        if not self._drawn and not self._is_ended:
            self._draw()
        if not self._drawn:
            raise StopIteration
        return self._drawn.popleft()
