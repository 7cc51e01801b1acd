"""FastLoader: torch's DataLoader with threads that prepare batches ahead of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from fastloop.fastloader.batching import BatchGroup, skip_batches
from fastloop.fastloader.block_shuffle import Blocks
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.checkpoint import (
    check_settings,
    loader_settings,
    random_states,
    restore_states,
    set_epoch,
)
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.columns.file_region import pack_maps, unpack_maps
from fastloop.fastloader.dataset_source import BatchSource, CollateFn, as_dataset, open_source
from fastloop.fastloader.device_copy import resolve_target
from fastloop.fastloader.large_files import use_direct_reads
from fastloop.fastloader.order import LoaderOrder, PiecewiseSampler, randperm_of_seed
from fastloop.fastloader.pipeline import GroupStream, Pipeline
from fastloop.fastloader.source import ColumnSource, SequentialSource, sequential_source
from fastloop.fastloader.tuning import CONSUMER_GROUPS, GROUP_BYTES, Tuning, choose_tuning

FIRST_GROUPS = 8
"""After this many groups of an epoch there is time to compute the next epoch's order."""


class FastLoader:
    """Batches of a tree of tensors and arrays, or of a map-style Dataset, prepared by threads.

    Parameters that DataLoader has too mean the same here. The rows of a tree are gathered into
    memory that is reused once no tensor refers to it; a Dataset's samples are read and collated in
    the threads. Each iteration is one epoch.

    Args:
        source: a tree (tuple, list, dict, ...) of tensors, arrays, memory maps and columns
            (`Images`, `Windows`, `converted`), all with num_samples in their first dimension and on
            the CPU; or a map-style Dataset. A batch is a tree of the same structure whose leaves
            have shape (batch_size, ...).
        batch_size: None delivers single samples without a batch dimension.
        shuffle: True is torch.randperm's order; with more than 2^20 samples, a random permutation
            whose indices are computed as the epoch proceeds. `Blocks(...)` shuffles blocks of
            neighbouring rows, so that a mapped file larger than memory can be read fast.
        sampler: indices, read as the epoch begins; excludes shuffle.
        batch_sampler: lists of indices; excludes batch_size, shuffle, sampler and drop_last.
        drop_last: drop an incomplete last batch.
        generator: for shuffle; None: epoch k is shuffled with the seed `seed + k`.
        collate_fn: for a Dataset's samples, by default torch's default_collate.
        transform: applied to each batch, in the threads.
        seed: of epoch 0.
        rank, world_size: deliver this rank's share, as torch's DistributedSampler does. All ranks
            need the same seed, and generators in the same state if any.
        num_threads: None chooses by the size of the samples and the cores available, see tuning.py;
            0 prepares batches when they are requested. A Dataset is read by several threads at
            once, a batch each; 1 reads its batches one after the other.
        prefetch_factor: groups of batches to prepare ahead for each thread; None chooses.
        copy: by default an epoch in sequential order (no shuffle, sampler, ranks or device) does
            not copy tensors and writable arrays: its batches are views, and writing to them writes
            to the source. True copies there too.
        device: where batches are delivered, such as "cuda". The threads copy from pinned buffers,
            concurrently with the device's other work; no synchronization is needed. None: the CPU.

    Batches may be kept and written to. A small batch keeps the memory of its whole group, up to
    4 MiB, which torch.save would write: save a clone(). state_dict() and load_state_dict() resume
    an epoch in its middle.

    Raises ValueError for an invalid source or setting; while iterating, IndexError for an index
    that is out of bounds. An error, of a sample for example, ends the epoch.

    >>> loader = FastLoader((images, labels), batch_size=256, shuffle=True, device="cuda")
    >>> for images, labels in loader:
    ...     loss = criterion(model(images), labels)
    """

    def __init__(  # noqa: PLR0913 - DataLoader's parameters, and those of its threads
        self,
        source: Tree,
        batch_size: int | None = 1,
        shuffle: bool | Blocks = False,
        sampler: Iterable[int] | torch.Tensor | PiecewiseSampler | None = None,
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
        self._source = open_source(source, collate_fn, batch_size is None)
        self.num_samples = len(self._source)
        self.copy, self.device = copy, device
        self._target = resolve_target(device)
        _ = self._order  # raises ValueError for invalid settings
        self._tuning = self._choose_tuning(num_threads, prefetch_factor)
        self.num_threads = self._tuning.num_threads
        self.prefetch_factor = self._tuning.prefetch_factor
        self.epoch = 0
        self._progress: dict[str, Any] | None = None
        self._is_loaded = False
        self._pool: BufferPool | None = None
        self._permute = lru_cache(1)(randperm_of_seed)

    def _choose_tuning(self, num_threads: int | None, prefetch_factor: int | None) -> Tuning:
        requested = num_threads, prefetch_factor
        names = "num_threads", "prefetch_factor"
        for name, value, least in zip(names, requested, (0, 1), strict=True):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}={value!r}: allowed is {least} or more")
        cheap = self._source.is_groupable and not self.transform
        is_plain = self.transform is None and self._target is None and self.batch_sampler is None
        divisible = is_plain and isinstance(self._source, ColumnSource)
        sizes = sum(self._source.row_nbytes), self.batch_size or 1, self.num_samples
        return choose_tuning(*sizes, cheap, requested, divisible)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._order)

    @property
    def dataset(self) -> Dataset:
        """A map-style dataset of the samples, as DataLoader's: the source, or a view of a tree."""
        return as_dataset(self.source)

    @property
    def _order(self) -> LoaderOrder:
        """Of the current settings, which may be assigned to between epochs."""
        return LoaderOrder(
            **{setting.name: getattr(self, setting.name) for setting in fields(LoaderOrder)}
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what another process needs; it has its own threads and buffers."""
        state = {"_source": None, "_pool": None, "_permute": None, "source": pack_maps(self.source)}
        return self.__dict__ | state | {"_progress": self._progress and dict(self._progress)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.source, self._permute = unpack_maps(self.source), lru_cache(1)(randperm_of_seed)
        self._source = open_source(self.source, self.collate_fn, self.batch_size is None)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next iteration's epoch, for the sampler too.

        Each iteration advances it by one. A state that was loaded within this epoch is kept.
        """
        progress = self._progress
        if not (progress and self._is_loaded and progress["epoch"] == epoch):
            self.epoch, self._progress, self._is_loaded = epoch, None, False
        set_epoch(self._effective_sampler, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, for `load_state_dict`.

        It holds the epoch, how many of its batches have been delivered, the random states at its
        begin, and the settings that determine the order. All ranks may load one rank's state. For
        an epoch that was left early it is where that one stopped.
        """
        return dict(self._progress) if self._progress else self._initial_progress()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume: the next iteration delivers the rest of the epoch that the state is from.

        Raises ValueError for the state of a loader with another batch_size, drop_last, num_samples,
        seed, shuffle or world_size.
        """
        check_settings(state, self)
        self._progress, self._is_loaded, self.epoch = dict(state), True, state["epoch"]

    def __iter__(self) -> Iterator[Tree]:
        """Start an epoch; its threads end with it, also where it is left early or fails."""
        if self._progress is None or not self._is_loaded:
            self._progress = self._initial_progress()
        progress = self._progress
        states = progress["drawn_from"] if self._is_loaded else None
        with restore_states(states, self.generator, self._effective_sampler):
            source, groups = self._plan_epoch(progress["epoch"])
        self._is_loaded, self.epoch = False, progress["epoch"] + 1
        groups = skip_batches(groups, progress["delivered"])
        for first in islice(groups, 1):
            early, precompute = islice(groups, FIRST_GROUPS), self._precompute(self.epoch)
            stream = self._start(source, chain([first], early, precompute, groups))
            return self._deliver(stream, progress)
        self._progress = None
        return iter(())

    def _precompute(self, epoch: int) -> Iterator[BatchGroup]:
        """No groups, but the thread that asks for one computes the order of the next epoch, for
        which that epoch's first batch would otherwise wait."""
        if self.num_threads:
            with suppress(Exception):  # raised again in that epoch
                self._order.precompute(epoch, self._permute)
        yield from ()

    def _plan_epoch(self, epoch: int) -> tuple[BatchSource, Iterable[BatchGroup]]:
        """The source of this rank's batches, and their groups."""
        order, source = self._order, self._source
        row_nbytes, is_groupable = sum(source.row_nbytes), source.is_groupable
        if self.batch_sampler is not None:
            max_rows = max(1, GROUP_BYTES // max(1, row_nbytes)) if is_groupable else 1
            return source, order.sampler_groups(max_rows)
        pieces = order.pieces(epoch, self._permute)
        early = list(islice(pieces, 2))  # the first may be the source's last, short block
        first = max(early, key=len, default=np.empty(0, np.int64))
        pieces = chain(early, pieces)
        is_sampled = self.sampler is not None and not isinstance(self.sampler, PiecewiseSampler)
        count = len(first) if is_sampled else order.rank_share(self.num_samples)
        counts = self._tuning.batch_counts(row_nbytes, self.batch_size or 1, count)
        batch_counts = counts if is_groupable else repeat(1)
        direct_source = None
        if isinstance(source, ColumnSource) and self.shuffle is not True:  # it has no stretches
            num_pieces = max(1, self.num_threads) * (self.prefetch_factor + 2) + 2
            direct_source = use_direct_reads(source, first, num_pieces)
        if direct_source is not None:
            # a part of a shuffled piece has rows of all its stretches: read the piece as a whole
            is_rising = bool((np.diff(first) > 0).all())
            return direct_source, order.groups(pieces, batch_counts if is_rising else None)
        if order.is_sequential and not self.copy and not self._target:
            source = (isinstance(source, ColumnSource) and sequential_source(source)) or source
        return source, order.groups(pieces, batch_counts)

    def _start(self, source: BatchSource, groups: Iterable[BatchGroup]) -> GroupStream:
        """Start the threads that prepare the groups' batches, where any are needed."""
        is_plain = self.transform is None
        if is_plain and isinstance(source, SequentialSource) and not source.gathered.columns:
            return (source.batches(group, None) for group in groups)
        pool = self._prepare_pool(source.row_nbytes)
        pipeline = Pipeline(self._tuning, self.batch_size or 1, self.transform, self._target)
        is_divisible = is_plain and source is self._source
        if self._tuning.part_rows and is_divisible and isinstance(source, ColumnSource):
            return pipeline.start_in_parts(source, pool, groups)
        return pipeline.start(source, pool, groups)

    def _initial_progress(self) -> dict[str, Any]:
        states = random_states(self.generator, self._effective_sampler)
        progress = {"epoch": self.epoch, "delivered": 0, "drawn_from": states}
        return progress | {"settings": loader_settings(self)}

    @property
    def _effective_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def _deliver(self, stream: GroupStream, progress: dict[str, Any]) -> Iterator[Tree]:
        try:
            for batches in stream:
                batch = None
                for batch in batches:
                    progress["delivered"] += 1
                    yield batch
                del batches, batch  # or their buffer would not be free before the next is made
            if self._progress is progress:
                self._progress = None
        finally:
            stream.close()

    def _prepare_pool(self, row_nbytes: Sequence[int]) -> BufferPool:
        """The buffers of earlier epochs, or new ones."""
        pool, pinned = self._pool, self._target is not None and self._target.type == "cuda"
        if pool is None or not pool.is_usable(row_nbytes):
            pool = BufferPool(row_nbytes, pinned)
        num_copying = self.num_threads if pinned else 0
        ahead = self.num_threads * self.prefetch_factor
        pool.set_capacity(ahead + 3 + CONSUMER_GROUPS + num_copying)
        self._pool = pool
        return pool
