"""`loader=turboloader`: turboloader's MapDataLoader over a store's rows or the dataset itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch.utils.data import default_collate

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.index_batches import epoch_indices
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import RAGGED_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Samples, Store
from fastloop.core.types import Batches, Epochs, Tree, Unsupported, option
from fastloop.data.rows import Rows

LIBRARY = Library("turboloader", "loader=turboloader", "pip install turboloader")


@option
class TurboLoaderLoader:
    """A loader that delivers batches by turboloader's MapDataLoader, a pool of threads that fetch
    sample by sample: `MapDataLoader(samples, collate_fn=default_collate)`.

    MapDataLoader takes any dataset. The samples are passed in the order of the job. turboloader's
    loader of image files is not used: it resizes all images by its own filter, so its pixels differ
    from the pixels of other loaders.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    num_threads: PositiveThreads
    """Number of threads of the pool; turboloader calls it `num_workers`."""
    prefetch_batches: PositiveDepth
    """Number of batches that are fetched ahead of the loop."""
    has_even_shares: ClassVar[bool] = True
    """All ranks get the same number of batches, because the plan's order is followed."""
    reads_samples: ClassVar[bool] = True
    """With store=null, the samples of the dataset itself are read."""

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of honoured settings.

        With store=null: a collate for samples of different lengths, which no store can hold.
        """
        return () if self.store else (RAGGED_COLLATE,)

    def check_installed(self) -> None:
        """Raise Unsupported without turboloader."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the threads are started and ended with each epoch."""
        library = LIBRARY.load()
        loading = plan.loading
        if self.store is None and prepared.returns_batches:
            reason = f"the __getitems__ of {prepared.label} returns a whole batch"
            raise Unsupported(f"loader=turboloader fetches sample by sample: {reason}")
        samples = (
            prepared.dataset.open()
            if self.store is None
            else Rows(partial(self.store.open, prepared.folder))
        )
        make_batch = plan.collate.collate if plan.collate else default_collate

        def batches(epoch: int) -> Batches:
            order = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch).tolist()
            yield from library.MapDataLoader(
                _Ordered(samples, order),
                loading.batch_size,
                num_workers=self.num_threads,
                collate_fn=make_batch,
                drop_last=loading.drop_last,
                prefetch_batches=self.prefetch_batches,
            )

        with close_on_exit(batches) as epochs:
            yield epochs


@dataclass(frozen=True)
class _Ordered:
    """A view of the samples in the order of an epoch."""

    samples: Samples | Rows
    order: list[int]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Tree:
        return self.samples[self.order[index]]
