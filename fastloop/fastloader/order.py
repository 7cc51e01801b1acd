"""The order of an epoch's samples, and how they form batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from fastloop.fastloader.load_native_core import has_core
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.native_stream import (
    FeistelOrder,
    NativeOrder,
    SeededOrder,
    SourceOrder,
    read_pieces,
)
from fastloop.fastloader.permutation import random_permutation
from fastloop.fastloader.process_group import group_size, resolve_rank
from fastloop.fastloader.torch_draws import draw_seed, has_leftover, reads_ahead

SEQUENTIAL_PIECE = 1 << 20
"""Indices of a piece in sequential order."""
MAX_RANDPERM = 1 << 20
"""The most samples for which torch.randperm's order is stored. If there are more, indices are
computed on demand, see permutation.py."""
FED_ROWS = 4096
"""Rows of the batches of a batch sampler that are handed to the native core at once."""


def randperm_pieces(num_samples: int, seed: int) -> Iterable[np.ndarray]:
    """Yield pieces of torch.randperm's order for this seed."""
    if has_core():
        return read_pieces(SeededOrder(num_samples, seed))
    return [_randperm(num_samples, torch.Generator("cpu").manual_seed(seed))]


@dataclass(frozen=True, kw_only=True)
class LoaderOrder:
    """FastLoader's settings that determine order and batches, as in DataLoader and
    DistributedSampler.

    Raises ValueError for ranks that are invalid, or that exclude the sampler.
    """

    num_samples: int
    batch_size: int | None
    shuffle: bool | Blocks
    sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None
    batch_sampler: Iterable[Sequence[int]] | None
    drop_last: bool
    generator: torch.Generator | None
    seed: int | None
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
        """The sampler of indices or of batches, if any."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def draws_seed(self) -> bool:
        """True if each epoch draws its order's seed from torch's global generator."""
        is_alone = self.seed is None and self.world_size == 1
        return is_alone and bool(self.shuffle) and self.generator is None

    @property
    def is_paced(self) -> bool:
        """True if the user's code gives the indices, and may draw whenever it is asked for one.

        Such a sampler is read when DataLoader would read it, see paced_samplers.py.
        """
        if self.seed is not None or self.world_size > 1 or self.user_sampler is None:
            return False
        return self.is_lazy and not reads_ahead(self.user_sampler)

    @property
    def draws_at_begin(self) -> bool:
        """True if something is drawn, or a sampler read, when the first index is asked for."""
        return self.is_lazy or (bool(self.shuffle) and self.world_size == 1)

    @property
    def draws_leftover(self) -> bool:
        """True if an epoch draws a RandomSampler's leftover at its end, see torch_draws.py."""
        is_alone = self.seed is None and self.world_size == 1
        is_drawn = is_alone and self.num_samples <= MAX_RANDPERM
        return is_drawn and self.leftover_generator is not None

    @property
    def leftover_generator(self) -> torch.Generator | None:
        """The generator of the RandomSampler that gives the order, or would give it in
        DataLoader."""
        if self.shuffle is True:
            return self.generator
        return self.sampler.generator if has_leftover(self.sampler) else None  # pyright: ignore

    @property
    def last_draw(self) -> int:
        """The number, from 0 on, of the batch at which a sampler of all samples comes to its end.

        That is the last batch if it is short. Otherwise the sampler is asked for one more batch,
        for which it has no index.
        """
        return self.num_samples // (self.batch_size or 1)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # pyright: ignore[reportArgumentType]
        count, size = self.num_samples, self.batch_size or 1
        if self.sampler is not None:
            count = len(self.sampler)  # pyright: ignore[reportArgumentType]
        count = self.rank_share(count)
        return count // size if self.drop_last else -(-count // size)

    @property
    def is_sequential(self) -> bool:
        """True if this process delivers all samples in the source's order."""
        is_reordered = self.shuffle or self.sampler is not None or self.batch_sampler is not None
        return not is_reordered and self.world_size == 1

    @property
    def is_lazy(self) -> bool:
        """True if a user's sampler is read as the epoch proceeds."""
        is_known = self.sampler is None or isinstance(self.sampler, (*ARRAYS, PiecewiseSampler))
        return self.batch_sampler is not None or not is_known

    def rank_share(self, num_samples: int) -> int:
        """Of this many samples, the number that each rank delivers."""
        return -(-num_samples // self.world_size)

    def native(self, seed: int, delivered: int) -> tuple[NativeOrder, int]:
        """The order as the native core takes it, and the first index that is to be delivered.

        seed: seeds a shuffled order without a generator. delivered: batches of the epoch that have
        been delivered. Generators have been read when this returns; samplers are read as the pieces
        are asked for.
        """
        if self.batch_sampler is not None:
            # The batches of a batch sampler may differ in size: sizes are fed with the indices.
            groups = group_batches(self.batches(seed, delivered), FED_ROWS)
            return ((np.concatenate(g), np.array([*map(len, g)])) for g in groups), 0
        # After a short last batch, the product lies beyond the end.
        start = min(delivered * (self.batch_size or 1), self.rank_share(self.num_samples))
        if self.shuffle is True and self.num_samples > MAX_RANDPERM:
            permutation = random_permutation(self.num_samples, self._epoch_generator(seed))
            # The tables are drawn at once: the user may use the generator during the epoch.
            return FeistelOrder(permutation, self.rank, self.world_size), start
        if self.shuffle is True and self.generator is None:
            return SeededOrder(self.num_samples, seed, self.rank, self.world_size), start
        if not self.shuffle and self.sampler is None:
            return SourceOrder(self.num_samples, self.rank, self.world_size), start
        # The core computes none of the other orders: it is fed with their indices.
        return ((piece, None) for piece in self._remaining_pieces(seed, delivered)), 0

    def pieces(self, seed: int) -> Iterator[np.ndarray]:
        """Iterate over pieces of this rank's indices: every world_size-th, from the rank on.

        With shuffle=Blocks a rank has whole blocks instead. Generators have been read when this
        returns, samplers are read as pieces are asked for. Iteration raises IndexError for an index
        out of bounds.
        """
        with one_torch_thread():
            if isinstance(self.shuffle, Blocks):
                generator = self._epoch_generator(seed)
                # Blocks are dealt out whole: every world_size-th row would spread each rank over
                # all blocks.
                pieces = self.shuffle.pieces(
                    self.num_samples, generator, self.rank, self.world_size, self.batch_size or 1
                )
                return iterate_single_threaded(pieces)
            if self.shuffle and self.num_samples > MAX_RANDPERM:
                generator = self._epoch_generator(seed)
                permutation = random_permutation(self.num_samples, generator)
                return permutation.pieces(self.rank, self.world_size)
            pieces = self._global_pieces(seed)
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
        return cut_batches(pieces, self.batch_size or 1, self.drop_last)

    def _remaining_pieces(self, seed: int, delivered: int) -> Iterator[np.ndarray]:
        return skip_indices(self.pieces(seed), delivered * (self.batch_size or 1))

    def _global_pieces(self, seed: int) -> Iterable[np.ndarray]:
        if self.sampler is not None:
            if isinstance(self.sampler, PiecewiseSampler):
                return (check_indices(piece, self.num_samples) for piece in self.sampler.pieces())
            size = (self.batch_size or 1) * self.world_size
            sampler = self.sampler
            if self.draws_leftover:
                # Asking for more than all samples would draw the permutation at the sampler's end,
                # which is drawn at its own moment instead, see draw_leftover.
                sampler = islice(sampler, self.num_samples)  # pyright: ignore
            return sampler_pieces(sampler, self.num_samples, size)
        if not self.shuffle:
            return self._sequential_pieces()
        if self.generator is None:
            return randperm_pieces(self.num_samples, seed)
        return [_randperm(self.num_samples, self.generator)]

    def _epoch_generator(self, seed: int) -> torch.Generator:
        """A private generator, from which an order can be drawn as the epoch proceeds."""
        # Only one number is drawn from the caller's generator, which the caller may use while the
        # epoch runs.
        if self.generator is not None:
            seed = draw_seed(self.generator)
        return torch.Generator("cpu").manual_seed(seed)

    def _sequential_pieces(self) -> Iterator[np.ndarray]:
        size = self.batch_size or 1
        # A piece has whole batches, so that no remainder of it is copied into the next one.
        step = size * max(1, SEQUENTIAL_PIECE // size)
        for start in range(0, self.num_samples, step):
            yield np.arange(start, min(start + step, self.num_samples))


def _randperm(num_samples: int, generator: torch.Generator) -> np.ndarray:
    # int32 is drawn faster than int64, and gives the same order.
    return torch.randperm(num_samples, generator=generator, dtype=torch.int32, device="cpu").numpy()


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The order of an iterable's epochs. Its samples come as the iterable yields them."""

    num_samples: int | None
    """The number of samples; None if it is unknown."""
    batch_size: int | None
    drop_last: bool
    seed: int | None
    shuffle = False
    world_size = 1
    is_sequential = True
    is_paced = draws_seed = draws_at_begin = draws_leftover = False

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError if it is unknown."""
        if self.num_samples is None:
            raise TypeError("this FastLoader has no len(): its IterableDataset has none")
        size = self.batch_size or 1
        return self.num_samples // size if self.drop_last else -(-self.num_samples // size)

    def batches(self, seed: int) -> Iterator[np.ndarray]:  # noqa: ARG002
        """Raise TypeError: an iterable has no indices."""
        raise TypeError("the samples of an IterableDataset have no indices")


EpochOrder = LoaderOrder | StreamOrder
"""The order of a source with samples by index, or of an iterable."""


def order_of_indices(settings: LoaderSettings, num_samples: int) -> LoaderOrder:
    """The order of a source with samples by index; its rank may be the process group's.

    Raises ValueError for ranks that are invalid, or that exclude the sampler.
    """
    # Each list of a BatchSampler that is given as the sampler is one item for the source, as in
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
    """The order of an iterable, which is sharded already or not.

    Raises ValueError for settings that an iterable can't have, and in a group of processes, each of
    which would read all of it, unless it is sharded.
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
        advice = "shard it, as split_dataset_by_node does, and say so with rank=0, world_size=1"
        raise ValueError(f"world_size={world_size}: an IterableDataset shards itself; {advice}")
    return StreamOrder(
        num_samples=num_samples,
        batch_size=settings.batch_size,
        drop_last=settings.drop_last,
        seed=settings.plain_seed,
    )
