"""Builds torch's DataLoader for loaders, stores and references."""

from __future__ import annotations

import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, Sampler

from fastloop.core.loading_settings import LOADING, worker_settings
from fastloop.core.plan import Plan
from fastloop.core.protocols import Order, Samples
from fastloop.core.types import Epochs, Tree, Unsupported
from fastloop.data.batch_stream import BatchStream
from fastloop.data.dataset_samples import is_not_empty, wrap_samples
from fastloop.data.worker_errors import name_failing_sample
from fastloop.processes.parent_death import tie_worker_to_parent

if TYPE_CHECKING:
    from fastloop.core.epochs import Batches, IndexBatches


@dataclass
class EpochSampler(Sampler[int]):
    """Yields the plan's order as Python ints, like torch's RandomSampler.

    `epoch` selects the epoch.
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


@dataclass(frozen=True)
class BatchIndexedRows:
    """A dataset that fetches the rows of a batch by one index operation (`__getitems__`)."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tree:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> Tree:
        return self.rows[indices]


def check_batch_indexable(rows: Any) -> Any:
    """Return the rows; raises Unsupported for a tree."""
    # An index reaches the leaves of a tensordict, but not those of a tuple or a dict.
    if not hasattr(rows, "clone"):
        raise Unsupported("rows can't be indexed by batch: use store@loader.store=tensordict")
    return rows


def data_and_targets(batch: Any) -> Tree:
    """collate_fn for a batch of a tensorclass: its (data, targets)."""
    return batch.data, batch.targets


def identity_collate(batch: Tree) -> Tree:
    """collate_fn for batches that are fetched as a whole."""
    return batch


def copy_settings(
    loader: DataLoader, dataset: Any, collate_fn: Any, num_workers: int | None = None
) -> DataLoader:
    """A DataLoader of this dataset and collate, with the sampler and the settings of another one.

    num_workers: None: as many as the other one has.
    """
    # DataLoader refuses these arguments if there are no workers.
    workers = loader.num_workers if num_workers is None else num_workers
    names = ("timeout", "worker_init_fn", "in_order", *worker_settings(prefetches_by_process=False))
    of_workers = {name: getattr(loader, name) for name in names}
    return DataLoader(
        dataset,
        batch_sampler=loader.batch_sampler,
        collate_fn=collate_fn,
        num_workers=workers,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
        **(of_workers if workers else {}),
    )


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

    collate_fn: replaces the plan's collate and transform, for samples fetched by batch.
    batches: yields the indices of batches, for samples that are read as `samples[indices]`.
    build: DataLoader, or a class derived from it.
    """
    tolerant = plan.collate is not None and plan.collate.tolerant
    if collate_fn is None:
        samples = wrap_samples(samples, plan)
        collate_fn = plan.collate.collate if plan.collate else None
    if plan.probe:
        samples = plan.probe.wrap_dataset(samples)
        collate_fn = plan.probe.wrap_collate(collate_fn)
    sampler = EpochSampler(plan.order, len(samples), plan.seed) if batches is None else batches
    settings = {name: getattr(plan.loading, name) for name in LOADING}
    # The sampler yields whole batches, so that DataLoader must not make batches itself; its
    # drop_last would be an error then, and the sampler honours the plan's.
    if batches is not None:
        settings |= {"batch_size": None, "drop_last": False}
    loader = build(
        samples,  # pyright: ignore[reportArgumentType] - any map-style object serves
        sampler=sampler,
        collate_fn=collate_fn,
        worker_init_fn=tie_worker_to_parent if plan.loading.num_workers else None,
        **settings,
    )

    with _epochs_of(loader, sampler) as epochs:
        yield (lambda epoch: filter(is_not_empty, epochs(epoch))) if tolerant else epochs


@contextmanager
def stream_epochs(batches: Callable[[int], Batches], plan: Plan) -> Iterator[Epochs]:
    """Epochs of a DataLoader over a stream of whole batches; its workers end on exit.

    batches: yields the batches of an epoch, in a worker those of the shards that it reads.
    """
    settings = {name: getattr(plan.loading, name) for name in LOADING}
    stream = BatchStream(batches, plan)
    loader = DataLoader(
        stream,
        worker_init_fn=tie_worker_to_parent if plan.loading.num_workers else None,
        **settings | {"batch_size": None, "drop_last": False},
    )
    with closing(stream), _epochs_of(loader, stream) as epochs:
        yield epochs


@contextmanager
def _epochs_of(
    loader: DataLoader, sampler: EpochSampler | IndexBatches | BatchStream
) -> Iterator[Epochs]:
    started: list[weakref.ref[Any]] = []
    try:
        with name_failing_sample(loader):
            yield lambda epoch: DataLoaderEpoch(loader, sampler, epoch, started)
    finally:
        end_iterators(loader, started)


def end_iterators(loader: object, started: list[weakref.ref[Any]]) -> None:
    """End a DataLoader's persistent workers and the iterator of its last epoch."""
    # torch has no public way to end persistent workers, or those of an iterator that is still
    # referenced: `_iterator` holds the former. Without workers, an iterator has neither method.
    for iterator in [getattr(loader, "_iterator", None), *(reference() for reference in started)]:
        for name in ("_shutdown_workers", "close"):
            getattr(iterator, name, lambda: None)()


@dataclass(frozen=True)
class DataLoaderEpoch:
    """An epoch of a DataLoader. Its iterator is the DataLoader's own, so that a timed window calls
    nothing else."""

    loader: DataLoader
    sampler: EpochSampler | IndexBatches | BatchStream
    epoch: int
    started: list[weakref.ref[Any]]

    def __iter__(self) -> Iterator[Tree]:
        self.sampler.epoch = self.epoch
        iterator = iter(self.loader)
        self.started[:] = [weakref.ref(iterator)]
        return iterator


def decode_in_order(
    samples: Samples, batch_size: int, collate_fn: Callable[[list], Any], num_workers: int
) -> Iterable[Any]:
    """Batches of all samples in order, decoded in num_workers processes with a bounded number of
    batches in flight. Raises Unsupported if those processes could not import the samples' class.
    """
    context = _decoding_context() if num_workers else ""
    # The server imports torch and the dataset's module once, instead of every process.
    if context == "forkserver":
        preloaded = ["__main__", "torch", type(samples).__module__]
        multiprocessing.get_context(context).set_forkserver_preload(preloaded)
    return DataLoader(
        samples,  # pyright: ignore[reportArgumentType]
        batch_size=batch_size,
        collate_fn=collate_fn,
        num_workers=num_workers,
        multiprocessing_context=context or None,
        worker_init_fn=tie_worker_to_parent if num_workers else None,
    )


def _decoding_context() -> str:
    """The start method of processes that decode."""
    # A new process imports the classes of the dataset. Those that a notebook, `python -c` or a
    # script read from stdin defines can't be imported: only a fork has them, which is also
    # DataLoader's default on Linux.
    methods = multiprocessing.get_all_start_methods()
    if os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        return "forkserver" if "forkserver" in methods else "spawn"
    if sys.platform != "linux":
        reason = "other processes can't import what a notebook defines"
        raise Unsupported(f"num_workers: {reason}; put it in a module, or use num_workers=0")
    return "fork"
