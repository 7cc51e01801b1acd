"""The random numbers that an epoch draws from torch's generators, at DataLoader's moments.

If FastLoader replaces DataLoader, the program must get the same random numbers as before. So with
seed=None FastLoader draws the same numbers as DataLoader, at the same moments:

- The base seed, which seeds workers and samples, is drawn in iter(), from the loader's generator or
  else from torch's global generator.
- The order is drawn when the sampler is asked for the first index. This happens in the first
  next(). If workers make batches ahead, it happens in iter(), which asks for the indices of several
  batches. The number of these batches is called the lead.
- A RandomSampler of all samples with a given generator draws another permutation at its end, and
  does not use it. This permutation is called the leftover.
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
"""Keys of the drawn numbers in the state of a loader."""
DRAWS_FIRST = SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler
"""Samplers that draw nothing after their first index."""


@dataclass(frozen=True)
class EpochSeeds:
    """The seeds of an epoch."""

    order: int
    """The seed of a shuffled order without a generator."""
    samples: int
    """The seed from which, with the number of the epoch, the seeds of the samples follow."""
    is_base: bool
    """True if `samples` is DataLoader's base seed, which worker processes receive."""
    is_drawn_each_epoch: bool = False
    """True if each epoch draws a base seed of its own. The seeds of the samples then don't depend
    on the number of the epoch."""


@dataclass(frozen=True)
class Leftover:
    """The permutation that a RandomSampler draws at its end, and does not use."""

    num_samples: int
    """Length of the permutation."""
    generator: torch.Generator
    """The generator that was given to the sampler."""
    batch: int
    """The number, from 0 on, of the batch for which the sampler comes to its end. If the last batch
    is short, it is that batch. Otherwise DataLoader asks for one more batch, for which the sampler
    has no index."""

    def draw(self) -> None:
        """Draw the permutation."""
        draw_permutation(self.num_samples, self.generator)


class OrderDraws(NamedTuple):
    """The draws of an epoch's order, and their moments.

    The defaults are those of an order without draws.
    """

    has_seed: bool = False
    """True if the seed of the order is drawn from torch's global generator."""
    at_start: bool = False
    """True if something is drawn, or a sampler is read, when the first index is asked for."""
    is_paced: bool = False
    """True if a sampler of the user may draw for each index. Such a sampler is read only when
    DataLoader would read it, see paced_samplers.py."""
    leftover: Leftover | None = None
    """The permutation that is drawn at the end of the epoch; None: there is none."""


@dataclass(frozen=True)
class EpochStart:
    """The seeds and the states with which an epoch starts."""

    seeds: EpochSeeds
    """The seeds of the order and of the samples."""
    restored: AbstractContextManager[None]
    """The context in which the order is drawn. It restores the states of a loaded epoch."""
    lead: int = 0
    """Number of batches for which iter() draws indices. It applies to a sampler that is read only
    when DataLoader would read it (`OrderDraws.is_paced`)."""
    opened: Iterator[Any] | None = None
    """The iterator of such a sampler; None: it has not been made yet."""


@dataclass
class DrawMoments:
    """The moments at which the epochs of a loader draw."""

    lead: int
    """Number of batches for which iter() draws indices. 0: the indices of a batch are drawn in the
    next() that delivers the batch."""
    keeps_base: bool
    """True if all epochs keep the base seed of the first one. A DataLoader with persistent workers
    does so."""
    base: int | None = None
    """The base seed that is kept; None: each epoch draws one, or none has been drawn yet."""

    def draw_base(self, generator: torch.Generator | None) -> int:
        """The base seed of an epoch that begins: the kept seed, or a newly drawn one.

        generator: the loader's generator; None: torch's global generator.
        """
        if self.base is not None:
            return self.base
        number = draw_seed(generator)
        self.keep_base(number)
        return number

    def keep_base(self, number: int) -> None:
        """Keep the base seed for later epochs, if `keeps_base` is true."""
        if self.keeps_base:
            self.base = number


def choose_moments(settings: LoaderSettings) -> DrawMoments:
    """The moments at which a DataLoader with the same number of workers draws.

    If num_workers is not given, threads count as workers.
    """
    is_given = settings.num_workers is not None
    count = (settings.num_workers if is_given else settings.num_threads) or 0
    keeps_base = bool(settings.num_workers) and settings.persistent_workers
    return DrawMoments(count * (settings.prefetch_factor or TORCHS_PREFETCH_FACTOR), keeps_base)


def draw_seed(generator: torch.Generator | None) -> int:
    """A number of 63 bits, drawn as DataLoader and RandomSampler draw their seeds.

    generator: None: torch's global generator.
    """
    number = torch.empty((), dtype=torch.int64, device="cpu")
    return int(number.random_(generator=generator))


def epoch_seeds(seed: int, epoch: int) -> EpochSeeds:
    """The seeds of an epoch, for a loader with the given seed."""
    return EpochSeeds(epoch_seed(seed, epoch), seed, is_base=False)


def draw_before(
    batches: Iterator[Tree], num_batches: int, draw: Callable[[], Any]
) -> Generator[Tree | FailedBatch, None, None]:
    """Yield the batches; `draw` is called when batch `num_batches`, counted from 0, is asked for.

    An error would end this generator, so a FailedBatch takes the place of an error.
    """
    for number in count():
        if number == num_batches:
            draw()
        batch = try_batch(next, batches, NO_BATCH)
        if batch is NO_BATCH:
            return
        yield batch
        # Otherwise this frame would hold the batch while it waits for the next one.
        del batch


def reads_ahead(sampler: Any) -> bool:
    """True for indices in a tuple or range, or a sampler of torch, that may be read ahead.

    After its first index, such a sampler draws only the leftover, or only from a generator that it
    has made itself.
    """
    if type(sampler) is BatchSampler:
        return reads_ahead(sampler.sampler) and not has_leftover(sampler.sampler)
    if type(sampler) is RandomSampler:
        # Without a given generator, a RandomSampler makes one that nobody else draws from.
        return sampler.generator is None or has_leftover(sampler)
    return type(sampler) in (*DRAWS_FIRST, tuple, range)


def has_leftover(sampler: Any) -> bool:
    """True for a RandomSampler of all samples that draws permutations from a given generator.

    It draws one when it begins, and the leftover when it ends.
    """
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is None:
        return False
    return sampler.num_samples == len(sampler.data_source)  # pyright: ignore[reportArgumentType]


def draw_permutation(num_samples: int, generator: torch.Generator) -> torch.Tensor:
    """An int32 permutation of 0 to num_samples - 1, drawn as RandomSampler draws one."""
    # RandomSampler draws int64. int32 is faster, and gives the same order.
    return torch.randperm(num_samples, generator=generator, dtype=torch.int32, device="cpu")
