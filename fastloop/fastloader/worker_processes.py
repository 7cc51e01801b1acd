"""DataLoader's worker processes, which read an IterableDataset as its code expects: each process
knows its number from get_worker_info."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastloop.core.seeds import epoch_seed
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import NO_BATCH, FailedBatch, try_batch
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.sample_draws import SampleDraws


@dataclass(frozen=True)
class WorkerProcesses:
    """The processes' number, and DataLoader's settings for them."""

    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    persistent_workers: bool
    """Not used with an iterable: its processes start with each epoch."""

    def read(
        self, iterable: Any, collate_fn: Callable[[Any], Tree], order: Any, draws: SampleDraws
    ) -> Iterator[Tree | FailedBatch]:
        """The batches of an epoch; the processes start with the first, and end with this iterator.

        They are seeded with the epoch's seed, as DataLoader seeds them.
        """
        seed = draws.seed if draws.is_base else epoch_seed(draws.seed, draws.epoch)
        loader = DataLoader(
            iterable,
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            collate_fn=collate_fn,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            timeout=self.timeout,
            worker_init_fn=self.worker_init_fn,
            multiprocessing_context=self.multiprocessing_context,
            # DataLoader draws the workers' base seed from this generator: not from the program's.
            generator=torch.Generator("cpu").manual_seed(seed),
        )
        if hasattr(iterable, "set_epoch"):
            iterable.set_epoch(draws.epoch)
        batches = iter(loader)
        while (batch := try_batch(next, batches, NO_BATCH)) is not NO_BATCH:
            yield batch
            del batch  # or it would be held while the next is waited for


def open_workers(settings: LoaderSettings) -> WorkerProcesses | None:
    """The processes that may read the source, if any are asked for.

    num_threads asks for threads instead of processes, unless an IterableDataset is read.
    """
    is_iterable = isinstance(settings.source, IterableDataset)
    if not settings.num_workers or (settings.num_threads is not None and not is_iterable):
        return None
    return WorkerProcesses(
        settings.num_workers,
        settings.prefetch_factor,
        settings.timeout,
        settings.worker_init_fn,
        settings.multiprocessing_context,
        settings.persistent_workers,
    )
