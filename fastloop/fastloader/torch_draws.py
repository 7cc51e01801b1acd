"""The numbers that an epoch draws from torch's generators, drawn when DataLoader draws them.

A program in which FastLoader takes DataLoader's place must go on with the same random numbers.
With seed=None FastLoader therefore draws the same numbers as DataLoader, at the same moments:

- The base seed is drawn in iter(), from the loader's generator or from torch's global one.
- The order is drawn when the sampler is asked for the first index. That is in the first next(), or
  in iter() if workers make batches ahead. The number of these batches is called the lead.
- A RandomSampler of all samples that was given a generator draws one more permutation at its end,
  and does not use it. This permutation is called the leftover.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastloop.core.seeds import epoch_seed
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import NO_BATCH, FailedBatch, try_batch
from fastloop.fastloader.loader_settings import LoaderSettings

TORCHS_PREFETCH_FACTOR = 2
"""DataLoader's default of prefetch_factor: the number of batches that each worker prefetches."""
BASE_SEED, ORDER_SEED = "base_seed", "order_seed"
"""Keys of a state's drawn numbers."""
DRAWS_FIRST = SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler
"""Samplers that have drawn everything when they deliver their first index."""


@dataclass(frozen=True)
class EpochSeeds:
    """The numbers on which an epoch depends."""

    order: int
    """The seed of a shuffled order without a generator."""
    samples: int
    """The seed of the samples' draws, together with the epoch's number."""
    is_base: bool
    """True if `samples` is DataLoader's base seed, which worker processes receive."""
    is_drawn_each_epoch: bool = False
    """True if each epoch draws this base seed, which then tells epochs apart by itself."""


@dataclass(frozen=True)
class Leftover:
    """The permutation that a RandomSampler draws at its end, and does not use."""

    num_samples: int
    generator: torch.Generator
    batch: int
    """The number, from 0 on, of the batch at which the sampler comes to its end. That is the last
    batch if it is short. Otherwise the sampler is asked for one more batch, for which it has no
    index."""

    def draw(self) -> None:
        """Draw the permutation."""
        draw_permutation(self.num_samples, self.generator)


class OrderDraws(NamedTuple):
    """The draws of each epoch's order, and their moments. An order without draws has the
    defaults."""

    has_seed: bool = False
    """True if the order's seed is drawn from torch's global generator."""
    at_start: bool = False
    """True if something is drawn, or a sampler read, when the first index is asked for."""
    is_paced: bool = False
    """True if the user's code gives the indices, and may draw whenever it is asked for one. Such a
    sampler is read when DataLoader would read it, see paced_samplers.py."""
    leftover: Leftover | None = None
    """The permutation that is drawn at the end of the epoch; None: nothing is drawn there."""


@dataclass(frozen=True)
class EpochStart:
    """The seeds and the states with which an epoch starts."""

    seeds: EpochSeeds
    restored: AbstractContextManager[None]
    """The context in which samplers and generators draw the order."""
    lead: int = 0
    """Number of batches for which iter() draws indices, if the sampler is read as DataLoader reads
    it."""
    opened: Iterator[Any] | None = None
    """The iterator of such a sampler, if it has been made."""


@dataclass
class DrawMoments:
    """The moments at which the epochs of a loader draw."""

    lead: int
    """Number of batches for which iter() draws indices; 0: each is drawn by the next() that
    delivers it."""
    keeps_base: bool
    """True if the base seed is drawn once, as DataLoader does with persistent workers."""
    base: int | None = None
    """The base seed that is kept."""

    def draw_base(self, generator: torch.Generator | None) -> int:
        """The base seed of an epoch that begins."""
        if self.base is not None:
            return self.base
        number = draw_seed(generator)
        self.keep_base(number)
        return number

    def keep_base(self, number: int) -> None:
        """Keep the base seed for later epochs, if these draw none."""
        if self.keeps_base:
            self.base = number


def choose_moments(settings: LoaderSettings) -> DrawMoments:
    """The moments of a DataLoader with the same number of workers. If num_workers is not given,
    threads count as workers."""
    is_given = settings.num_workers is not None
    count = (settings.num_workers if is_given else settings.num_threads) or 0
    keeps_base = bool(settings.num_workers) and settings.persistent_workers
    return DrawMoments(count * (settings.prefetch_factor or TORCHS_PREFETCH_FACTOR), keeps_base)


def draw_seed(generator: torch.Generator | None) -> int:
    """A number of 63 bits, drawn as DataLoader and RandomSampler draw theirs."""
    number = torch.empty((), dtype=torch.int64, device="cpu")
    return int(number.random_(generator=generator))


def epoch_seeds(seed: int, epoch: int) -> EpochSeeds:
    """The seeds of an epoch of a loader that was given a seed."""
    return EpochSeeds(epoch_seed(seed, epoch), seed, is_base=False)


def draw_before(
    batches: Iterator[Tree], num_batches: int, draw: Callable[[], Any]
) -> Generator[Tree | FailedBatch, None, None]:
    """The batches. `draw` is called when the one after the first `num_batches` is asked for.

    A FailedBatch takes the place of an error, which would end a generator.
    """
    for number in count():
        if number == num_batches:
            draw()
        batch = try_batch(next, batches, NO_BATCH)
        if batch is NO_BATCH:
            return
        yield batch
        # The batch is released before the wait for the next one.
        del batch


def reads_ahead(sampler: Any) -> bool:
    """True for a sampler of torch that may be read ahead.

    After its first index it draws nothing but the leftover, or from its own generator.
    """
    if type(sampler) is BatchSampler:
        return reads_ahead(sampler.sampler) and not has_leftover(sampler.sampler)
    if type(sampler) is RandomSampler:
        # Without a given generator, a RandomSampler makes one that nobody else draws from.
        return sampler.generator is None or has_leftover(sampler)
    return type(sampler) in (*DRAWS_FIRST, tuple, range)


def has_leftover(sampler: Any) -> bool:
    """True for a RandomSampler that draws from a given generator: a permutation when it begins, and
    the leftover when it ends."""
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is None:
        return False
    return sampler.num_samples == len(sampler.data_source)  # pyright: ignore[reportArgumentType]


def draw_permutation(num_samples: int, generator: torch.Generator) -> torch.Tensor:
    """A permutation, drawn as RandomSampler draws its own."""
    # int32 is drawn faster than int64, and gives the same order.
    return torch.randperm(num_samples, generator=generator, dtype=torch.int32, device="cpu")
