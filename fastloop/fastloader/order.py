"""LoaderOrder, the order in which an epoch reads its samples and forms batches of them.

An iterable has a StreamOrder instead, because its samples have no indices. A piece is an array of
consecutive indices of an order, and an order is computed piece by piece. A rank is one of the
`world_size` processes that share the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from fastloop.core.sharding import shard
from fastloop.core.torch_threads import iterate_single_threaded, one_torch_thread
from fastloop.fastloader.batching import (
    ARRAYS,
    PiecewiseSampler,
    check_indices,
    cut_batches,
    group_batches,
    sampler_pieces,
    skip_indices,
    to_array,
)
from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.feistel import FeistelPermutation, random_permutation
from fastloop.fastloader.load_native_core import has_core
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.native_order import (
    FeistelOrder,
    NativeOrder,
    SeededOrder,
    SourceOrder,
    read_pieces,
)
from fastloop.fastloader.process_group import group_size, resolve_rank
from fastloop.fastloader.torch_draws import (
    Leftover,
    OrderDraws,
    draw_permutation,
    draw_seed,
    has_leftover,
    reads_ahead,
)

SEQUENTIAL_PIECE = 1 << 20
"""Approximate number of indices of a piece in sequential order."""
MAX_RANDPERM = 1 << 20
"""Maximum number of samples for which torch.randperm's order is stored. The order of more samples
is computed on demand, see feistel.py."""
FED_ROWS = 4096
"""Maximum number of rows that are handed to the native core at once if a batch sampler gives the
batches; a larger batch is handed over as a whole."""


def _randperm_pieces(num_samples: int, seed: int) -> Iterable[np.ndarray]:
    """The pieces of the order that torch.randperm draws from this seed."""
    if has_core():
        return read_pieces(SeededOrder(num_samples, seed))
    return [draw_permutation(num_samples, torch.Generator("cpu").manual_seed(seed)).numpy()]


class OrderKind(Enum):
    """The source of the indices of an epoch."""

    BATCH_SAMPLER = auto()
    """The user's batch sampler gives the indices of each batch."""
    SAMPLER = auto()
    """The user's sampler gives one index after another."""
    ARRAY = auto()
    """The user's indices exist already, or a PiecewiseSampler computes many at once."""
    SEQUENTIAL = auto()
    """The samples are read in the order of the source."""
    BLOCKS = auto()
    """Blocks of samples are shuffled, and then the samples of blocks that follow each other."""
    SEEDED = auto()
    """The permutation that torch.randperm draws from a seed."""
    DRAWN = auto()
    """The permutation that torch.randperm draws from the user's generator."""
    COMPUTED = auto()
    """A permutation of more than MAX_RANDPERM samples, computed as the epoch proceeds."""


@dataclass(frozen=True, kw_only=True)
class LoaderOrder:
    """FastLoader's settings that determine order and batches.

    The settings have the names and meanings of DataLoader's and DistributedSampler's arguments.
    Raises ValueError for several ranks with a DistributedSampler or a batch sampler, which have to
    divide the samples themselves.
    """

    num_samples: int
    batch_size: int | None
    """Number of samples of a batch; None: samples are delivered one by one."""
    shuffle: bool | Blocks
    """True: a random permutation; Blocks: a shuffle by blocks of neighbouring samples."""
    sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None
    """The user's indices; None: `shuffle` or `batch_sampler` decides the order."""
    batch_sampler: Iterable[Sequence[int]] | None
    """The user's batches of indices; None: batches are cut from the order."""
    drop_last: bool
    """True if a short last batch is left out."""
    generator: torch.Generator | None
    """The generator from which a shuffled order is drawn; None: a seed decides the order."""
    seed: int | None
    """The seed that the user gave; None: no seed was given."""
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if self.world_size > 1 and isinstance(self.sampler, DistributedSampler):
            raise ValueError("world_size with a DistributedSampler: it already shards the indices")
        if self.world_size != 1 and self.batch_sampler is not None:
            setting = f"world_size={self.world_size} with batch_sampler"
            raise ValueError(f"{setting}: the batch_sampler itself has to shard the batches")

    @property
    def user_sampler(self) -> Any:
        """The user's sampler of indices or of batches; None if there is none."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @cached_property
    def kind(self) -> OrderKind:
        """The kind of the order, which determines how the other methods compute its indices."""
        if self.batch_sampler is not None:
            return OrderKind.BATCH_SAMPLER
        if self.sampler is not None:
            is_array = isinstance(self.sampler, (*ARRAYS, PiecewiseSampler))
            return OrderKind.ARRAY if is_array else OrderKind.SAMPLER
        if not self.shuffle:
            return OrderKind.SEQUENTIAL
        if isinstance(self.shuffle, Blocks):
            return OrderKind.BLOCKS
        if self.num_samples > MAX_RANDPERM:
            return OrderKind.COMPUTED
        return OrderKind.SEEDED if self.generator is None else OrderKind.DRAWN

    @property
    def rows_per_batch(self) -> int:
        """Number of samples of a batch; 1 if samples are delivered one by one."""
        return self.batch_size or 1

    @property
    def is_lazy(self) -> bool:
        """True if a user's sampler gives one index, or one batch, after another.

        A PiecewiseSampler is not lazy, although its pieces are computed as the epoch proceeds.
        """
        return self.kind in (OrderKind.BATCH_SAMPLER, OrderKind.SAMPLER)

    @property
    def is_sequential(self) -> bool:
        """True if this process delivers all samples in the source's order."""
        return self.kind is OrderKind.SEQUENTIAL and self.world_size == 1

    @property
    def follows_dataloader(self) -> bool:
        """True if the epochs draw the same random numbers as the epochs of a DataLoader.

        That is so without a seed and with a single rank.
        """
        return self.seed is None and self.world_size == 1

    @property
    def draws(self) -> OrderDraws:
        """The random numbers that an epoch's order draws, and the moments at which it does."""
        at_start = self.is_lazy or (bool(self.shuffle) and self.world_size == 1)
        if not self.follows_dataloader:
            return OrderDraws(at_start=at_start)
        return OrderDraws(
            has_seed=bool(self.shuffle) and self.generator is None,
            at_start=at_start,
            is_paced=self.is_lazy and not reads_ahead(self.user_sampler),
            leftover=self._find_leftover(),
        )

    def _find_leftover(self) -> Leftover | None:
        """The leftover: a permutation that a RandomSampler draws at its end, and does not use.

        The RandomSampler is the user's, or the one that DataLoader would make for this order. None
        if it draws no such permutation. See torch_draws.py.
        """
        generator = self.generator if self.kind is OrderKind.DRAWN else None
        count = self.num_samples
        if has_leftover(self.sampler):
            # A RandomSampler of the user's may give fewer indices than the source has samples.
            generator, count = self.sampler.generator, len(self.sampler)  # pyright: ignore
        # With more indices than MAX_RANDPERM, a user's RandomSampler draws the leftover itself, at
        # its end.
        if generator is None or count > MAX_RANDPERM:
            return None
        return Leftover(count, generator, count // self.rows_per_batch)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # pyright: ignore[reportArgumentType]
        count = self.num_samples
        if self.sampler is not None:
            count = len(self.sampler)  # pyright: ignore[reportArgumentType]
        return _count_batches(self.rank_share(count), self.rows_per_batch, self.drop_last)

    def rank_share(self, num_samples: int) -> int:
        """The number of samples that each rank delivers, rounded up, if all ranks share
        `num_samples`."""
        return -(-num_samples // self.world_size)

    def native(self, seed: int, delivered: int) -> tuple[NativeOrder, int]:
        """The order in the form that the native core takes, and the place at which it begins.

        seed: seeds a shuffled order without a generator. delivered: number of the epoch's batches
        that have been delivered already. Generators are read before this method returns, but
        samplers are read as the pieces are asked for.
        """
        if self.kind is OrderKind.BATCH_SAMPLER:
            # The batches of a batch sampler may differ in size, so their sizes are fed as well.
            groups = group_batches(self.batches(seed, delivered), FED_ROWS)
            return ((np.concatenate(g), np.array([*map(len, g)])) for g in groups), 0
        # After a short last batch, the product lies beyond the end.
        start = min(delivered * self.rows_per_batch, self.rank_share(self.num_samples))
        match self.kind:
            case OrderKind.COMPUTED:
                return FeistelOrder(self._draw_tables(seed), self.rank, self.world_size), start
            case OrderKind.SEEDED:
                return SeededOrder(self.num_samples, seed, self.rank, self.world_size), start
            case OrderKind.SEQUENTIAL:
                return SourceOrder(self.num_samples, self.rank, self.world_size), start
            # The core computes no other order, and gets the indices of the others.
            case _:
                return ((piece, None) for piece in self._remaining_pieces(seed, delivered)), 0

    def pieces(self, seed: int) -> Iterator[np.ndarray]:
        """Iterate over pieces of this rank's indices: every world_size-th index, from the rank on.

        With shuffle=Blocks a rank has whole blocks instead. Generators are read before this method
        returns, but samplers are read as the pieces are asked for. Iteration raises IndexError for
        an index out of bounds.
        """
        with one_torch_thread():
            match self.kind:
                case OrderKind.COMPUTED:
                    return self._draw_tables(seed).pieces(self.rank, self.world_size)
                case OrderKind.BLOCKS:
                    return iterate_single_threaded(self._block_pieces(seed))
                case OrderKind.SEQUENTIAL:
                    pieces = self._sequential_pieces()
                case OrderKind.SEEDED:
                    pieces = _randperm_pieces(self.num_samples, seed)
                case OrderKind.DRAWN:
                    assert self.generator is not None
                    pieces = [draw_permutation(self.num_samples, self.generator).numpy()]
                case _:
                    pieces = self._sampler_pieces()
        # The two orders that have returned above divide their indices among the ranks themselves.
        return shard(iterate_single_threaded(pieces), self.rank, self.world_size)

    def batches(self, seed: int, delivered: int = 0) -> Iterator[np.ndarray]:
        """Iterate over the int64 indices of this rank's batches, without the first `delivered`."""
        if self.batch_sampler is None:
            return chain.from_iterable(self.batches_by_piece(seed, delivered))
        batches = (check_indices(to_array(b), self.num_samples) for b in self.batch_sampler)
        return islice(iterate_single_threaded(batches), delivered, None)

    def batches_by_piece(self, seed: int, delivered: int) -> Iterator[Iterator[np.ndarray]]:
        """The batches that end in each piece of the order; there must be no batch sampler."""
        pieces = self._remaining_pieces(seed, delivered)
        return cut_batches(pieces, self.rows_per_batch, self.drop_last)

    def _remaining_pieces(self, seed: int, delivered: int) -> Iterator[np.ndarray]:
        """The pieces without the indices of the first `delivered` batches."""
        return skip_indices(self.pieces(seed), delivered * self.rows_per_batch)

    def _block_pieces(self, seed: int) -> Iterable[np.ndarray]:
        """The pieces of a BLOCKS order."""
        assert isinstance(self.shuffle, Blocks)
        generator = self._epoch_generator(seed)
        size = self.rows_per_batch
        # Each rank gets whole blocks. If it got every world_size-th row, it would read all blocks.
        return self.shuffle.pieces(self.num_samples, generator, self.rank, self.world_size, size)

    def _sampler_pieces(self) -> Iterable[np.ndarray]:
        """The pieces of a SAMPLER or ARRAY order, for all ranks together."""
        sampler: Any = self.sampler
        if isinstance(sampler, PiecewiseSampler):
            return (check_indices(piece, self.num_samples) for piece in sampler.pieces())
        if leftover := self.draws.leftover:
            # If the sampler were asked for more indices than it has, it would draw the leftover,
            # which is drawn at its own moment instead.
            sampler = islice(sampler, leftover.num_samples)
        return sampler_pieces(sampler, self.num_samples, self.rows_per_batch * self.world_size)

    def _draw_tables(self, seed: int) -> FeistelPermutation:
        """The permutation of a COMPUTED order."""
        # The tables of random numbers are drawn at once, because any index may need any of them.
        return random_permutation(self.num_samples, self._epoch_generator(seed))

    def _epoch_generator(self, seed: int) -> torch.Generator:
        """A private generator, from which an order can be drawn as the epoch proceeds."""
        # The user may use the given generator while the epoch runs, so only one number is drawn
        # from it.
        if self.generator is not None:
            seed = draw_seed(self.generator)
        return torch.Generator("cpu").manual_seed(seed)

    def _sequential_pieces(self) -> Iterator[np.ndarray]:
        """Yield the pieces of a SEQUENTIAL order, for all ranks together."""
        size = self.rows_per_batch
        # With a single rank, a piece consists of whole batches, so that no rest is copied into the
        # next piece.
        step = size * max(1, SEQUENTIAL_PIECE // size)
        for start in range(0, self.num_samples, step):
            yield np.arange(start, min(start + step, self.num_samples))


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The order of an iterable's epochs, in which samples come as the iterable yields them.

    Its attributes have the meanings of LoaderOrder's.
    """

    num_samples: int | None
    """The number of samples; None if it is unknown."""
    batch_size: int | None
    drop_last: bool
    seed: int | None
    shuffle = False
    world_size = 1
    is_sequential = True
    draws = OrderDraws()

    def __len__(self) -> int:
        """Return the number of batches of an epoch; raises TypeError if it is unknown."""
        if self.num_samples is None:
            raise TypeError("this FastLoader has no len(): its IterableDataset has none")
        return _count_batches(self.num_samples, self.rows_per_batch, self.drop_last)

    @property
    def rows_per_batch(self) -> int:
        """Number of samples of a batch; 1 if samples are delivered one by one."""
        return self.batch_size or 1

    def batches(self, seed: int) -> Iterator[np.ndarray]:  # noqa: ARG002
        """Raise TypeError, because an iterable has no indices."""
        raise TypeError("the samples of an IterableDataset have no indices")


def _count_batches(num_samples: int, rows_per_batch: int, drop_last: bool) -> int:
    """The number of batches of this many samples."""
    return num_samples // rows_per_batch if drop_last else -(-num_samples // rows_per_batch)


EpochOrder = LoaderOrder | StreamOrder
"""The order of a source with samples by index, or of an iterable."""


def order_of_indices(settings: LoaderSettings, num_samples: int) -> LoaderOrder:
    """The order of a source with samples by index.

    If the settings have no rank, the rank and the world_size of the process group are used. Raises
    ValueError for ranks that are invalid, or that exclude the sampler.
    """
    # If a BatchSampler is given as the sampler, each of its lists is one item for the source, as in
    # DataLoader.
    by_lists = settings.asks_for_lists
    batch_sampler: Any = settings.sampler if by_lists else settings.batch_sampler
    rank, world_size = resolve_rank(settings.rank, settings.world_size, settings.user_sampler)
    return LoaderOrder(
        num_samples=num_samples,
        batch_size=1 if by_lists else settings.batch_size,
        shuffle=settings.shuffle,
        sampler=None if by_lists else settings.sampler,
        batch_sampler=batch_sampler,
        drop_last=settings.drop_last,
        generator=settings.generator,
        seed=settings.plain_seed,
        rank=rank,
        world_size=world_size,
    )


def order_of_stream(
    settings: LoaderSettings, num_samples: int | None, *, is_sharded: bool
) -> StreamOrder:
    """The order of an iterable.

    num_samples: None if the number is unknown. is_sharded: True if the iterable itself reads only
    this rank's share. Raises ValueError for settings that an iterable can't have, among them a
    world_size above 1. Without a world_size, a group of several processes raises ValueError, too,
    because each process would read all samples. A sharded iterable is allowed there.
    """
    given = {
        "shuffle": settings.shuffle or None,
        "sampler": settings.sampler,
        "batch_sampler": settings.batch_sampler,
    }
    for name, value in given.items():
        if value is not None:
            shown = f"{name}={value}" if name == "shuffle" else f"{name}="
            reason = "it has no indices, and comes in its own order; its own shuffle mixes it"
            raise ValueError(f"{shown} with an IterableDataset: {reason}")
    world_size = settings.world_size
    if world_size is None:
        world_size = 1 if is_sharded else group_size()
    if world_size > 1:
        problem = "FastLoader can't divide an IterableDataset between ranks"
        advice = "divide it yourself, for example by split_dataset_by_node"
        raise ValueError(
            f"world_size={world_size}: {problem}; {advice}, and pass rank=0, world_size=1"
        )
    return StreamOrder(
        num_samples=num_samples,
        batch_size=settings.batch_size,
        drop_last=settings.drop_last,
        seed=settings.plain_seed,
    )
