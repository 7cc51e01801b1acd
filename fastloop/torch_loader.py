"""The one place that builds a torch DataLoader."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, Sampler

from fastloop.lifeline import tie
from fastloop.protocols import Order, Samples, Transform
from fastloop.types import BadData, Epochs, Plan, Tree, Unsupported

if TYPE_CHECKING:
    from fastloop.plans import IndexBatches
IN_A_WORKER = "in DataLoader worker process"
"""What torch's message says of an exception that was raised there."""


@dataclass
class EpochSampler(Sampler[int]):
    """Python ints in the plan's order, as torch's RandomSampler yields them; `epoch` picks
    which."""

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
class Transformed:
    """Samples with a transform's work done on each."""

    samples: Samples
    transform: Transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        sample = self.samples[index]
        return None if sample is None else self.transform.of_a_sample(sample)


@dataclass(frozen=True)
class Tolerant:
    """Samples of which those that can't be decoded come as None."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree | None:
        try:
            return self.samples[index]
        except BadData:
            return None


@dataclass(frozen=True)
class IndexedOnce:
    """A dataset whose rows are fetched by one index operation a batch (`__getitems__`)."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tree:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> Tree:
        return self.rows[indices]


def indexed_as_one(rows: Any) -> Any:
    """The rows; raises Unsupported where they are a tree, of which an index reaches no leaf."""
    if not hasattr(rows, "clone"):
        raise Unsupported("rows are indexed once a batch: store@loader.store=tensordict gives such")
    return rows


def pair_of(batch: Any) -> Tree:
    """(data, targets) of a tensorclass that was indexed once: nothing is left to collate."""
    return batch.data, batch.targets


def as_fetched(batch: Tree) -> Tree:
    """The batch: whoever has fetched it has left nothing to collate."""
    return batch


@contextmanager
def torch_epochs(
    samples: Samples,
    plan: Plan,
    collate_fn: Callable[[Any], Tree] | None = None,
    batches: IndexBatches | None = None,
) -> Iterator[Epochs]:
    """Epochs from a DataLoader that honours every setting of the plan; its workers end with it.

    A loader that comes with a collate_fn has no single samples for a plan's collate or transform.
    One that comes with batches of indices is asked for `samples[batch]`.
    """
    tolerant = plan.collate is not None and plan.collate.tolerant
    if collate_fn is None:
        samples = _each(samples, plan)
        collate_fn = plan.collate.collate if plan.collate else None
    sampler = EpochSampler(plan.order, len(samples), plan.seed) if batches is None else batches
    loader = DataLoader(
        samples,  # pyright: ignore[reportArgumentType] - any map-style object serves
        batch_size=plan.batch_size if batches is None else None,
        sampler=sampler,
        collate_fn=collate_fn,
        num_workers=plan.num_workers,
        pin_memory=plan.pin_memory,
        prefetch_factor=plan.prefetch_factor,
        persistent_workers=plan.persistent_workers,
        multiprocessing_context=plan.multiprocessing_context,
        drop_last=plan.drop_last and batches is None,
        worker_init_fn=_tied if plan.num_workers else None,
    )

    started: list[weakref.ref[Any]] = []
    try:
        with failures_named(loader):
            if tolerant:
                yield lambda epoch: filter(is_left, Epoch(loader, sampler, epoch, started))
            else:
                yield lambda epoch: Epoch(loader, sampler, epoch, started)
    finally:
        end_iterators(loader, started)


@contextmanager
def failures_named(loader: Any) -> Iterator[None]:
    """Whatever fails meanwhile in a worker of a DataLoader is raised as BadData that names the
    sample, as far as one fails when all are read again; Unsupported stays what it is.

    torch tells no index, and a wrapper that did would cost every sample of every epoch.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, BadData) or IN_A_WORKER not in str(error):
            raise
        if isinstance(error, Unsupported):  # a verdict on the job, whichever process speaks it
            raise Unsupported(_last_line(error, "Unsupported: ")) from error
        if not (said := _failing_sample(loader)):
            raise
        raise BadData(f"{said} (in a DataLoader worker)") from error


def end_iterators(loader: Any, started: list[weakref.ref[Any]]) -> None:
    """End what a loader has started: workers that it keeps, and the last epoch's iterator.

    Nothing public ends the workers of an iterator that somebody still holds, nor kept ones.
    """
    for iterator in [getattr(loader, "_iterator", None), *(one() for one in started)]:
        for name in ("_shutdown_workers", "close"):
            getattr(iterator, name, lambda: None)()


@dataclass(frozen=True)
class Epoch:
    """One epoch of a DataLoader: iterating gives the loader's own iterator, nothing around it."""

    loader: DataLoader
    sampler: EpochSampler | IndexBatches
    epoch: int
    started: list[weakref.ref[Any]]

    def __iter__(self) -> Iterator[Tree]:
        self.sampler.epoch = self.epoch
        iterator = iter(self.loader)
        self.started[:] = [weakref.ref(iterator)]
        return iterator


def is_left(batch: Tree | None) -> bool:
    """False for a batch of which no sample could be decoded."""
    return batch is not None


def _each(samples: Samples, plan: Plan) -> Samples:
    if plan.collate and plan.collate.tolerant:
        samples = Tolerant(samples)
    return Transformed(samples, plan.transform) if plan.transform else samples


def _tied(worker: int) -> None:  # noqa: ARG001
    tie()


@dataclass(frozen=True)
class Naming:
    """Nothing for each sample, but the index of one that can't be read."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> None:
        try:
            self.samples[index]
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            raise BadData(f"sample {index}: {type(error).__name__}: {said}") from error


def _failing_sample(loader: Any) -> str:
    """Which sample of its dataset fails in a worker, and with what; empty where none does, or where
    samples have no numbers."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return ""
    again = DataLoader(
        Naming(loader.dataset),  # pyright: ignore[reportArgumentType]
        batch_size=64,
        collate_fn=len,
        num_workers=loader.num_workers,
        multiprocessing_context=loader.multiprocessing_context,
        worker_init_fn=_tied,
    )
    try:
        for _ in again:
            pass
    except BadData as found:
        return _last_line(found, "BadData: ")
    return ""


def _last_line(error: Exception, after: str) -> str:
    """What a worker's traceback says in the end."""
    return str(error).strip().splitlines()[-1].partition(after)[2]


def in_order(
    samples: Samples, batch_size: int, collate_fn: Callable[[list], Any], num_workers: int
) -> Iterable[Any]:
    """Every sample once, as stored, decoded in that many processes; what is in flight stays
    bounded."""
    context = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    if num_workers and context == "forkserver":  # its server imports torch, not every process
        preloaded = ["__main__", "torch", type(samples).__module__]
        multiprocessing.get_context(context).set_forkserver_preload(preloaded)
    return DataLoader(
        samples,  # pyright: ignore[reportArgumentType]
        batch_size=batch_size,
        collate_fn=collate_fn,
        num_workers=num_workers,
        multiprocessing_context=context if num_workers else None,
        worker_init_fn=_tied if num_workers else None,
    )
