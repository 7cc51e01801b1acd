"""The order of a loader's epochs, as its settings determine it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler

from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.iterable_source import IterableSource, StreamOrder, stream_order
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.process_group import resolve_rank
from fastloop.fastloader.setting_kinds import check_kinds

EpochOrder = LoaderOrder | StreamOrder
"""The order of a source with samples by index, or of an iterable."""


def asks_for_lists(batch_size: int | None, sampler: Any) -> bool:
    """True if a source is asked for the lists of a BatchSampler, and delivers batches itself."""
    return batch_size is None and isinstance(sampler, BatchSampler)


def resolve_order(loader: Any, source: BatchSource | IterableSource) -> EpochOrder:
    """The order of a loader of this source; its rank may be the process group's.

    Raises TypeError and ValueError for settings that are invalid, or exclude each other.
    """
    check_kinds(loader)
    if isinstance(source, IterableSource):
        return stream_order(loader, source)
    batch_size, sampler, batch_sampler = loader.batch_size, loader.sampler, loader._batch_sampler
    if asks_for_lists(batch_size, sampler):
        # Each list of the BatchSampler is one item for the source, as in DataLoader.
        batch_size, sampler, batch_sampler = 1, None, sampler
    given = sampler if batch_sampler is None else batch_sampler
    rank, world_size = resolve_rank(loader.rank, loader.world_size, given)
    return LoaderOrder(
        num_samples=loader.num_samples,
        batch_size=batch_size,
        shuffle=loader.shuffle,
        sampler=sampler,
        batch_sampler=batch_sampler,
        drop_last=loader.drop_last,
        generator=loader.generator,
        seed=loader.seed,
        rank=rank,
        world_size=world_size,
    )
