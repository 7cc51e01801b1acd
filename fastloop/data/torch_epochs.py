"""Open epochs of torch's DataLoader, over samples or over streams of whole batches.

`torch_epochs` reads samples by their indices. `stream_epochs` reads batches that a loader makes
from shards, the files into which a dataset is divided.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, filterfalse
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from fastloop.core.index_batches import IndexBatches
from fastloop.core.open_iterators import OpenIterators
from fastloop.core.plan import Plan
from fastloop.core.protocols import Order, Samples
from fastloop.core.types import Batches, Epochs, Tree
from fastloop.data.dataset_samples import is_broken, wrap_samples
from fastloop.data.worker_errors import name_failing_sample
from fastloop.processes.parent_death import tie_worker_to_parent


@dataclass
class EpochSampler(Sampler[int]):
    """Yields the indices of an epoch as Python ints, like torch's RandomSampler.

    Set `epoch` to choose the epoch.
    """

    order: Order
    num_samples: int
    seed: int
    epoch: int = 0

    def __len__(self) -> int:
        return self.order.length(self.num_samples)

    def __iter__(self) -> Iterator[int]:
        pieces = self.order.pieces(self.num_samples, self.seed, self.epoch)
        return chain.from_iterable(piece.tolist() for piece in pieces)


def identity_collate(batch: Tree) -> Tree:
    """Return the batch as it is: a collate_fn for batches that are fetched as a whole."""
    return batch


@contextmanager
def torch_epochs(
    samples: Samples,
    plan: Plan,
    collate_fn: Callable[[Any], Tree] | None = None,
    batches: IndexBatches | None = None,
    *,
    build: Callable[..., DataLoader] = DataLoader,
) -> Iterator[Epochs]:
    """Epochs of a DataLoader that honours all settings of the plan; its workers end on exit.

    collate_fn: replaces the plan's collate and transform, for samples that are fetched by batch;
    None: the plan's are used.
    batches: yields the indices of batches, for samples that are read as `samples[indices]`; None:
    samples are read one by one, in the plan's order.
    build: DataLoader, or a class derived from DataLoader.
    """
    tolerant = plan.collate is not None and plan.collate.tolerant
    if collate_fn is None:
        samples = wrap_samples(samples, plan)
        collate_fn = plan.collate.collate if plan.collate else None
    if plan.probe:
        samples = plan.probe.wrap_dataset(samples)
        collate_fn = plan.probe.wrap_collate(collate_fn)
    sampler = EpochSampler(plan.order, len(samples), plan.seed) if batches is None else batches
    settings = plan.loading.as_arguments()
    # The sampler yields whole batches, so the DataLoader must not make batches itself. Without
    # batch_size a DataLoader allows no drop_last, so the sampler honours drop_last instead.
    if batches is not None:
        settings |= {"batch_size": None, "drop_last": False}
    loader = build(
        samples,  # pyright: ignore[reportArgumentType] - any map-style object serves
        sampler=sampler,
        collate_fn=collate_fn,
        worker_init_fn=tie_worker_to_parent,
        **settings,
    )

    with _epochs_of(loader, sampler) as epochs:
        yield (lambda epoch: filterfalse(is_broken, epochs(epoch))) if tolerant else epochs


@contextmanager
def _epochs_of(
    loader: DataLoader, sampler: EpochSampler | IndexBatches | BatchStream
) -> Iterator[Epochs]:
    """Epochs of the loader; its workers end on exit.

    An error of a sample names the sample. sampler: the source of the loader's order, the `epoch` of
    which is set when an epoch begins.
    """
    started = OpenIterators()
    try:
        with name_failing_sample(loader):
            yield lambda epoch: DataLoaderEpoch(loader, sampler, epoch, started)
    finally:
        started.close(loader)


@dataclass(frozen=True)
class DataLoaderEpoch:
    """An epoch of a DataLoader, with the DataLoader's own iterator.

    A timed window therefore calls nothing else.
    """

    loader: DataLoader
    sampler: EpochSampler | IndexBatches | BatchStream
    epoch: int
    started: OpenIterators
    """Notes the iterator, so that it can be closed before its end."""

    def __iter__(self) -> Iterator[Tree]:
        self.sampler.epoch = self.epoch
        return self.started.start(self.loader)


class BatchStream(IterableDataset):
    """A dataset that yields whole batches, for a DataLoader with batch_size=None.

    Set `epoch` to choose the epoch, also in workers that have started already.
    """

    def __init__(self, batches: Callable[[int], Batches], plan: Plan) -> None:
        self._batches = batches
        context = multiprocessing.get_context(plan.loading.multiprocessing_context)
        # Workers read the number of the epoch from shared memory. Without workers none is made,
        # because it stays open until this process ends.
        self._shared: Any = context.RawValue("q", 0) if plan.loading.num_workers else None
        self._own = 0
        self._started = OpenIterators()

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iterator delivers."""
        return self._own if self._shared is None else self._shared.value

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if self._shared is None:
            self._own = epoch
        else:
            self._shared.value = epoch

    def __iter__(self) -> Iterator[Tree]:
        return self._started.start(self._batches(self.epoch))

    def close(self) -> None:
        """Close the shards that iterators of this process have opened."""
        self._started.close()


@contextmanager
def stream_epochs(batches: Callable[[int], Batches], plan: Plan) -> Iterator[Epochs]:
    """Epochs of a DataLoader over a stream of whole batches; its workers end on exit.

    batches: function from the number of an epoch to its batches; in a worker, to the batches of the
    shards that this worker reads.
    """
    stream = BatchStream(batches, plan)
    settings = plan.loading.as_arguments() | {"batch_size": None, "drop_last": False}
    loader = DataLoader(stream, worker_init_fn=tie_worker_to_parent, **settings)
    with closing(stream), _epochs_of(loader, stream) as epochs:
        yield epochs
