"""`loader=ffcv`: FFCV's Loader over its .beton file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from fastloop.core.bounds import PositiveDepth
from fastloop.core.index_batches import epoch_indices
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import INSTALL_FFCV, Library, isolate_import
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Unsupported, option

LIBRARY = Library("ffcv", "loader=ffcv", INSTALL_FFCV)


class FfcvBatches(Protocol):
    """FFCV's Loader, which is iterated once for each epoch."""

    next_epoch: int
    """Number of the epoch that the next iteration delivers."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of an epoch. The iterator is the thread that puts them into its queue."""
        ...


@option
class FfcvLoader:
    """FFCV's compiled pipeline in one background thread, reading through the page cache.

    FFCV uses several threads for images only; its array decoder has one. It reuses the memory of a
    batch `batches_ahead` + 2 batches later, so each batch is copied before it is returned and stays
    valid, as with every other loader.
    """

    store: Store
    """The store to read."""
    honours: ClassVar[tuple[str, ...]] = ()
    has_even_shares: ClassVar[bool] = True
    batches_ahead: PositiveDepth
    """Number of batches that FFCV prepares ahead of the loop."""

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield epochs of (data, label) batches.

        numba compiles the pipeline before the first batch, again in every process.

        Raises Unsupported without FFCV.
        """
        path = self.store.open(prepared.folder)
        if not isinstance(path, Path):
            raise Unsupported("loader=ffcv reads .beton files only: use store@loader.store=ffcv")
        with isolate_import():
            loader = self._loader(path, plan, prepared.num_samples)
        with _thread_errors() as errors, close_on_exit(partial(_batches, loader, errors)) as epochs:
            yield epochs

    def _loader(self, path: Path, plan: Plan, num_samples: int) -> FfcvBatches:
        ffcv = LIBRARY.load("ffcv.loader")
        base = LIBRARY.load("ffcv.traversal_order.base")
        return ffcv.Loader(
            str(path),
            batch_size=plan.loading.batch_size,
            num_workers=1,
            os_cache=True,
            order=_order(base.TraversalOrder, plan, num_samples),
            seed=plan.seed,
            drop_last=plan.loading.drop_last,
            batches_ahead=self.batches_ahead,
        )


def _order(base: Any, plan: Plan, num_samples: int) -> Any:
    class PlanOrder(base):
        """The plan's order as FFCV's traversal order.

        FFCV takes an instance, and calls it as if it were the class.
        """

        def __init__(self) -> None: ...

        def __call__(self, _loader: Any) -> PlanOrder:
            return self

        def sample_order(self, epoch: int) -> np.ndarray:
            indices = epoch_indices(plan.order, num_samples, plan.seed, epoch)
            return indices.numpy().astype(np.uint64)

    return PlanOrder()


def _batches(loader: FfcvBatches, errors: dict[Any, BaseException], epoch: int) -> Batches:
    # FFCV counts its epochs by itself, but a trial may begin with any number.
    loader.next_epoch = epoch
    with isolate_import():
        iterator = iter(loader)
    try:
        for data, label in iterator:
            # FFCV writes a later batch to the same memory.
            yield data.clone(), label[:, 0].clone()
        # The loop ends when it gets None from FFCV's queue. FFCV puts it there at the end of an
        # epoch, and the hook below after an error.
        if iterator in errors:
            raise errors[iterator]
    finally:
        _end(iterator)


@contextmanager
def _thread_errors() -> Iterator[dict[Any, BaseException]]:
    """Yield the errors of FFCV's threads by thread.

    For a failed thread, the hook puts None into the queue. Without the None, the loop would wait
    forever for a batch.
    """
    errors: dict[Any, BaseException] = {}
    before = threading.excepthook

    def record(args: threading.ExceptHookArgs) -> None:
        queue = getattr(args.thread, "output_queue", None)
        if queue is None or args.exc_value is None:
            before(args)
        else:
            errors[args.thread] = args.exc_value
            queue.put(None)

    threading.excepthook = record
    try:
        yield errors
    finally:
        threading.excepthook = before


def _end(iterator: Any) -> None:
    """Stop FFCV's thread and wait for its end; a full queue would block it, so it is drained."""
    # No further batch is begun.
    iterator.iter_ixes = iter(())
    iterator.terminate_event.set()
    while iterator.is_alive():
        with suppress(Empty):
            iterator.output_queue.get(timeout=0.1)
