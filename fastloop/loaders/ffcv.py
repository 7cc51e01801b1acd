"""`loader=ffcv`: FFCV's Loader over its .beton file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from fastloop.generators import Batches, closed_at_the_end
from fastloop.optional import INSTALL_FFCV, contained, imported
from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.types import Epochs, Plan, Prepared, Unsupported, option


@option
class Ffcv:
    """FFCV's compiled pipeline on a thread beside the loop, through the system's page cache, in our
    order. FFCV decodes only images on several threads; its decoder of arrays has one.

    FFCV writes batches into memory that it uses again `batches_ahead` + 2 batches later, so each is
    copied once more before it is handed out: it is the receiver's then, as any other loader's.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    batches_ahead: PositiveInt

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of (data, label) batches; what numba compiles is compiled in every process anew,
        before the first batch.

        Raises Unsupported without FFCV.
        """
        honours_only("ffcv", plan, *self.honours)
        path = self.store.open(prepared.folder)
        if not isinstance(path, Path):
            raise Unsupported("rows are in a .beton file: store@loader.store=ffcv gives such")
        with contained():
            loader = self._loader(path, plan, prepared.num_samples)
        with _failures() as failed, closed_at_the_end(partial(_batches, loader, failed)) as epochs:
            yield epochs

    def _loader(self, path: Path, plan: Plan, num_samples: int) -> Any:
        ffcv = imported("ffcv.loader", "loader=ffcv", INSTALL_FFCV)
        base = imported("ffcv.traversal_order.base", "loader=ffcv", INSTALL_FFCV)
        return ffcv.Loader(
            str(path),
            batch_size=plan.batch_size,
            num_workers=1,
            os_cache=True,
            order=_order(base.TraversalOrder, plan, num_samples),
            seed=plan.seed,
            drop_last=plan.drop_last,
            batches_ahead=self.batches_ahead,
        )


def _order(base: Any, plan: Plan, num_samples: int) -> Any:
    class PlansOrder(base):
        """The order of the plan. FFCV takes only an instance, and calls it as if it were a
        class."""

        def __init__(self) -> None: ...

        def __call__(self, _loader: Any) -> PlansOrder:
            return self

        def sample_order(self, epoch: int) -> np.ndarray:
            indices = epoch_indices(plan.order, num_samples, plan.seed, epoch)
            return indices.numpy().astype(np.uint64)

    return PlansOrder()


def _batches(loader: Any, failed: dict[Any, BaseException], epoch: int) -> Batches:
    loader.next_epoch = epoch
    with contained():
        iterator = iter(loader)
    try:
        for data, label in iterator:
            yield data.clone(), label[:, 0].clone()
        if iterator in failed:
            raise failed[iterator]
    finally:
        _end(iterator)


@contextmanager
def _failures() -> Iterator[dict[Any, BaseException]]:
    """What ended FFCV's threads: whoever waits for a batch of such a one would wait for good."""
    failed: dict[Any, BaseException] = {}
    before = threading.excepthook

    def note(why: threading.ExceptHookArgs) -> None:
        queue = getattr(why.thread, "output_queue", None)
        if queue is None or why.exc_value is None:
            before(why)
        else:
            failed[why.thread] = why.exc_value
            queue.put(None)

    threading.excepthook = note
    try:
        yield failed
    finally:
        threading.excepthook = before


def _end(iterator: Any) -> None:
    """Return when FFCV's thread has ended: it is given nothing more to do, and is not left waiting
    for a place for what it has done."""
    iterator.iter_ixes = iter(())
    iterator.terminate_event.set()
    while iterator.is_alive():
        with suppress(Empty):
            iterator.output_queue.get(timeout=0.1)
