"""FastLoader: torch's DataLoader, with threads that make batches ahead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Tree
from fastloop.fastloader.in_order import InOrder, in_order
from fastloop.fastloader.indices import Block, Blocks, without
from fastloop.fastloader.making import Made, Making
from fastloop.fastloader.order import Order, Pieces, permutation
from fastloop.fastloader.pace import BLOCK_BYTES, OWN, Pace, pace_of
from fastloop.fastloader.progress import check_same, drawn_from, put_back, set_epoch, settings_of
from fastloop.fastloader.samples import Batches, CollateFn, dataset_of, opened
from fastloop.fastloader.sending import target_of
from fastloop.fastloader.source import Source
from fastloop.fastloader.streamed import streamed
from fastloop.fastloader.travel import packed, unpacked

BEGUN = 8
"""After so many blocks of an epoch there is time for what the next one needs."""


class FastLoader:
    """Batches of the rows of `source`, a tree of tensors, arrays or columns (Images, Windows) of
    one length, gathered ahead by threads into memory that is used again once nobody holds any of
    it; or of a map-style Dataset's samples, read and collated in these threads.

    What DataLoader's parameters of the same names mean they mean here; `num_threads` and
    `prefetch_factor` (blocks ahead for each thread) are chosen where they are None, see pace.py;
    with num_threads=0 batches are made where they are asked for. A batch is a tree like the source:
    its tensors may be kept, and written to, for as long as one likes; a small one keeps the memory
    of its block, up to 4 MiB, which torch.save would write: save a clone(). An epoch's indices are
    read from a sampler as the epoch begins.

    shuffle: True, which is torch.randperm's order, or where there are more than 2^20 samples one of
    which each index is computed as the epoch goes on, see drawn.py. Or Blocks, which shuffles
    neighbours, drawn as the epoch goes on, too: so a mapped file that is larger than memory is read
    fast, see streamed.py.

    copy: in the source's own order (no shuffle, no sampler, one rank, no device) tensors and
    writable arrays in memory are not copied: a batch's are views of them, writing to it writes to
    the source, and where there is nothing else to do no thread is started. copy=True makes them
    batches of their own there too.

    device: where batches are delivered, "cuda" for example: copied there by the threads, from
    pinned buffers and beside the device's own work; nothing has to be waited for. None: the CPU.

    A Dataset's samples are read by several threads at once, one a batch: that is fast where reading
    gives the interpreter's lock back, and num_threads=1 reads one after the other.

    transform: what is done with each batch, where it is gathered. `rank` of `world_size` delivers
    its share, as torch's DistributedSampler does; then all need generators of the same seed, or
    none: without one, epoch k is shuffled by `seed + k`.

    Raises ValueError for a source or for settings that can't be, IndexError in the epoch for an
    index that is not in the source. An error, of a sample for example, ends the epoch.
    """

    def __init__(  # noqa: PLR0913 - DataLoader's own, and what they are in threads
        self,
        source: Tree,
        batch_size: int | None = 1,
        shuffle: bool | Blocks = False,
        sampler: Iterable[int] | torch.Tensor | Pieces | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        *,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        collate_fn: CollateFn | None = None,
        transform: Callable[[Tree], Tree] | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_threads: int | None = None,
        prefetch_factor: int | None = None,
        copy: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        self.source, self.batch_size, self.drop_last = source, batch_size, drop_last
        self.collate_fn = collate_fn
        self.shuffle, self.sampler, self.batch_sampler = shuffle, sampler, batch_sampler
        self.generator, self.transform, self.seed = generator, transform, seed
        self.rank, self.world_size = rank, world_size
        self._source = opened(source, collate_fn, batch_size is None)
        self.num_samples = len(self._source)
        self.copy, self.device = copy, device
        self._target = target_of(device)
        _ = self._order  # raises where these can't be
        self._pace = self._paced(num_threads, prefetch_factor)
        self.num_threads, self.prefetch_factor = self._pace.num_threads, self._pace.prefetch_factor
        self.epoch = 0
        self._at: dict[str, Any] | None = None
        self._is_loaded = False
        self._pool: Pool | None = None
        self._pool_of = os.getpid()
        self._permute = lru_cache(1)(permutation)

    def _paced(self, num_threads: int | None, prefetch_factor: int | None) -> Pace:
        given = num_threads, prefetch_factor
        for name, value, least in zip(
            ("num_threads", "prefetch_factor"), given, (0, 1), strict=True
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}={value!r}: allowed is {least} or more")
        cheap = self._source.together and not self.transform
        whole = self.transform is None and self._target is None and self.batch_sampler is None
        divisible = whole and isinstance(self._source, Source)
        sizes = sum(self._source.row_nbytes), self.batch_size or 1, self.num_samples
        return pace_of(*sizes, cheap, given, divisible)

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self._order)

    @property
    def dataset(self) -> Dataset:
        """The samples by index, as DataLoader's: the source, or a view of it where it is a tree."""
        return dataset_of(self.source)

    @property
    def _order(self) -> Order:
        """As the settings are now."""
        return Order(**{one.name: getattr(self, one.name) for one in fields(Order)})

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs; it has threads and buffers of its own."""
        own = {"_source": None, "_pool": None, "_permute": None, "source": packed(self.source)}
        return self.__dict__ | own | {"_at": self._at and dict(self._at)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.source, self._permute = unpacked(self.source), lru_cache(1)(permutation)
        self._source = opened(self.source, self.collate_fn, self.batch_size is None)

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next iteration is, for the sampler too; each iteration goes on to the
        next by itself. A state that was loaded in the middle of that epoch stays."""
        if not (self._at and self._is_loaded and self._at["epoch"] == epoch):
            self.epoch, self._at, self._is_loaded = epoch, None, False
        set_epoch(self._drawn_by, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: the epoch, how many of its batches have been delivered, the state of
        what its order was drawn from, and the settings that both depend on. What one rank saved
        all may load. An epoch that was left early is where it was left.
        """
        return dict(self._at) if self._at else self._beginning()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there: the next iteration delivers the rest of that epoch. Raises ValueError for a
        state of a loader with another batch_size, drop_last, num_samples, seed, shuffle or
        world_size."""
        check_same(state, self)
        self._at, self._is_loaded, self.epoch = dict(state), True, state["epoch"]

    def __iter__(self) -> Iterator[Tree]:
        """One epoch; its threads end with it, however that ends."""
        if self._at is None or not self._is_loaded:
            self._at = self._beginning()
        at = self._at
        states = at["drawn_from"] if self._is_loaded else None
        with put_back(states, self.generator, self._drawn_by):
            source, coming = self._coming(at["epoch"])
        self._is_loaded, self.epoch = False, at["epoch"] + 1
        blocks = without(coming, at["delivered"])
        for first in islice(blocks, 1):
            begun, drawn = islice(blocks, BEGUN), self._next_drawn(at["epoch"] + 1)
            made = self._begun(source, chain([first], begun, drawn, blocks))
            return self._counted(made, at)
        self._at = None
        return iter(())

    def _next_drawn(self, epoch: int) -> Iterator[Block]:
        """No block: the thread that asks for one draws the next epoch's order, for which otherwise
        the first batch of that one would wait."""
        if self.num_threads:
            with suppress(Exception):  # it comes again in its own epoch
                self._order.ahead(epoch, self._permute)
        yield from ()

    def _coming(self, epoch: int) -> tuple[Batches, Iterable[Block]]:
        """What this rank's batches are made of, and the blocks of them."""
        order, source = self._order, self._source
        row_nbytes, together = sum(source.row_nbytes), source.together
        if self.batch_sampler is not None:
            most = max(1, BLOCK_BYTES // max(1, row_nbytes)) if together else 1
            return source, order.blocks_as_given(most)
        pieces = order.pieces(epoch, self._permute)
        begun = list(islice(pieces, 2))  # of which the first may be the source's last, short block
        first = max(begun, key=len, default=np.empty(0, np.int64))
        pieces = chain(begun, pieces)
        given = self.sampler is not None and not isinstance(self.sampler, Pieces)
        count = len(first) if given else order.share_of(self.num_samples)
        paced = self._pace.batches(row_nbytes, self.batch_size or 1, count)
        batches = paced if together else repeat(1)
        held = max(1, self.num_threads) * (self.prefetch_factor + 2) + 2
        apart = None
        if isinstance(source, Source) and self.shuffle is not True:  # which leaves no neighbours
            apart = streamed(source, first, held)
        if apart is not None:
            # a part of a shuffled piece has rows of every stretch: they are read for all of it
            is_rising = bool((np.diff(first) > 0).all())
            return apart, order.blocks(pieces, batches if is_rising else None)
        if order.is_the_sources and not self.copy and not self._target:
            source = (isinstance(source, Source) and in_order(source)) or source
        return source, order.blocks(pieces, batches)

    def _begun(self, source: Batches, blocks: Iterable[Block]) -> Made:
        """Their batches; the threads that make them have started."""
        if isinstance(source, InOrder) and not source.filled.columns and self.transform is None:
            return (source.batches(block, None) for block in blocks)
        pool = self._pooled(source.row_nbytes)
        making = Making(self._pace, self.batch_size or 1, self.transform, self._target)
        whole = self.transform is None and source is self._source
        if self._pace.part_rows and whole and isinstance(source, Source):
            return making.begun_in_parts(source, pool, blocks)
        return making.begun(source, pool, blocks)

    def _beginning(self) -> dict[str, Any]:
        drawn = drawn_from(self.generator, self._drawn_by)
        at = {"epoch": self.epoch, "delivered": 0, "drawn_from": drawn}
        return at | {"settings": settings_of(self)}

    @property
    def _drawn_by(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _counted(self, made: Made, at: dict[str, Any]) -> Iterator[Tree]:
        try:
            for batches in made:
                batch = None
                for batch in batches:
                    at["delivered"] += 1
                    yield batch
                del batches, batch  # or the buffer would not come back before the next is here
            if self._at is at:
                self._at = None
        finally:
            made.close()

    def _pooled(self, row_nbytes: Sequence[int]) -> Pool:
        """Buffers; those of an earlier epoch, unless this is another process."""
        pool, here = self._pool, self._pool_of == os.getpid()
        pinned = self._target is not None and self._target.type == "cuda"
        if not here or pool is None or pool.row_nbytes != tuple(row_nbytes):
            pool, self._pool_of = Pool(row_nbytes, pinned), os.getpid()
        copied_from = self.num_threads if pinned else 0
        pool.keep(self.num_threads * self.prefetch_factor + 3 + OWN + copied_from)
        self._pool = pool
        return pool
