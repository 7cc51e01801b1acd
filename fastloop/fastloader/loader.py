"""FastLoader: torch's DataLoader for data that is rows of memory, or of mapped files."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fastloop.cores import usable_cores
from fastloop.fastloader.ahead import in_threads
from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Tree
from fastloop.fastloader.indices import Block, checked, cut, cut_as_given, permuted, share
from fastloop.fastloader.source import Source, source_of

BLOCK_BYTES = 4 << 20
"""Batches are gathered together up to so much: handing over costs two switches of threads."""
MOST_THREADS = 4
MOST_BATCHES = 4096


class FastLoader:
    """Batches of the rows of `source`, a tree of tensors or arrays of one length, gathered ahead
    by threads into memory that is used again once nobody holds any of it.

    What DataLoader's parameters of the same names mean they mean here; `num_threads` and
    `prefetch_factor` (blocks ahead for each thread) are chosen where they are None. A batch is a
    tree like the source: its tensors may be kept, and written to, for as long as one likes.

    transform: what is done with each batch, where it is gathered. `rank` of `world_size` delivers
    its share, as torch's DistributedSampler does; then all need generators of the same seed, or
    none: without one, epoch k is shuffled by `seed + k`.

    Raises ValueError for a source or for settings that can't be, IndexError in the epoch for an
    index that is not in the source.
    """

    def __init__(  # noqa: PLR0913 - DataLoader's own, and what they are in threads
        self,
        source: Tree,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[int] | torch.Tensor | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        *,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        transform: Callable[[Tree], Tree] | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int | None = None,
        prefetch_factor: int | None = None,
    ) -> None:
        _check(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank}: allowed are 0 to world_size - 1, it is {world_size}")
        self.source, self.batch_size, self.drop_last = source, batch_size, drop_last
        self.shuffle, self.sampler, self.batch_sampler = shuffle, sampler, batch_sampler
        self.generator, self.transform, self.seed = generator, transform, seed
        self.rank, self.world_size = rank, world_size
        self._source = source_of(source)
        self.num_samples = len(self._source)
        self.num_threads = num_threads or max(1, min(MOST_THREADS, usable_cores()))
        self.prefetch_factor = prefetch_factor or 2
        self.epoch = 0
        self._skip = 0
        self._delivered = 0
        self._pool: Pool | None = None
        self._pool_of = os.getpid()

    def __len__(self) -> int:
        """How many batches an epoch has."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # pyright: ignore[reportArgumentType]
        given = self.num_samples if self.sampler is None else len(self.sampler)  # pyright: ignore[reportArgumentType]
        own = -(-given // self.world_size)
        return own // self.batch_size if self.drop_last else -(-own // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next one is; each iteration goes on to the next by itself."""
        self.epoch, self._skip = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Where the loader is: the epoch, and how many of its batches have been delivered."""
        return {"epoch": self.epoch, "delivered": self._delivered}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there: the next iteration delivers the rest of that epoch."""
        self.epoch, self._skip = state["epoch"], state["delivered"]

    def __iter__(self) -> Iterator[Tree]:
        """One epoch; its threads end with it, however that ends."""
        epoch, skip = self.epoch, self._skip
        self._skip, self._delivered = 0, skip
        blocks = _without(self._blocks(epoch), skip)
        if not blocks:
            self.epoch = epoch + 1
            return iter(())
        pool = self._pooled(max(len(block.indices) for block in blocks))
        make = partial(_made, self._source, pool, self.transform)
        made = in_threads(make, blocks, self.num_threads, self.prefetch_factor)
        return self._counted(made, epoch)

    def _counted(self, made: Generator[Sequence[Tree], None, None], epoch: int) -> Iterator[Tree]:
        try:
            for batches in made:
                batch = None
                for batch in batches:
                    self._delivered += 1
                    yield batch
                del batches, batch  # or the buffer would not come back before the next is here
            self.epoch, self._delivered = epoch + 1, 0
        finally:
            made.close()

    def _blocks(self, epoch: int) -> list[Block]:
        """What this rank gathers in that epoch."""
        row_nbytes = sum(self._source.row_nbytes)
        if self.batch_sampler is not None:
            most = max(1, BLOCK_BYTES // max(1, row_nbytes))
            return cut_as_given(self.batch_sampler, self.num_samples, most)
        indices = share(self._order(epoch), self.rank, self.world_size)
        batch_nbytes = max(1, row_nbytes * self.batch_size)
        fair = -(-len(indices) // (self.batch_size * self.num_threads * 4))
        batches = max(1, min(BLOCK_BYTES // batch_nbytes, fair, MOST_BATCHES))
        return cut(indices, self.batch_size, self.drop_last, batches)

    def _order(self, epoch: int) -> np.ndarray:
        if self.sampler is not None:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
            return checked(_array(self.sampler), self.num_samples)
        if not self.shuffle:
            return np.arange(self.num_samples)
        own = torch.Generator().manual_seed(self.seed + epoch)
        return permuted(self.num_samples, self.generator or own)

    def _pooled(self, rows: int) -> Pool:
        """Buffers of that many rows; those of an earlier epoch, unless this is another process."""
        if self._pool is None or self._pool.rows < rows or self._pool_of != os.getpid():
            self._pool, self._pool_of = Pool(rows, self._source.row_nbytes), os.getpid()
        self._pool.trim(self.num_threads * (self.prefetch_factor + 1) + 2)
        return self._pool


def _made(
    source: Source, pool: Pool, transform: Callable[[Tree], Tree] | None, block: Block
) -> Sequence[Tree]:
    batches = source.batches(block, pool)
    return batches if transform is None else [transform(batch) for batch in batches]


def _check(
    batch_size: int, shuffle: bool, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: allowed is 1 or more")
    if sampler is not None and shuffle:
        raise ValueError("shuffle=True with a sampler: the sampler has the order")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler or drop_last):
        raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")


def _array(indices: Iterable[int] | torch.Tensor) -> np.ndarray:
    if isinstance(indices, torch.Tensor | np.ndarray | list):
        return np.asarray(indices)
    return np.fromiter(indices, np.int64)


def _without(blocks: list[Block], batches: int) -> list[Block]:
    """The blocks but for so many of their batches."""
    left = list(blocks)
    while batches and left:
        first = left.pop(0)
        sizes = first.split()
        if len(sizes) > batches:
            rest = first.indices[sum(sizes[:batches]) :]
            return [Block(rest, sizes[batches:]), *left]
        batches -= len(sizes)
    return left
