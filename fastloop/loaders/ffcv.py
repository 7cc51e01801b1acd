"""`loader=ffcv`: FFCV's Loader over its .beton file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from fastloop.generators import Batches, closed_at_the_end
from fastloop.optional import INSTALL_FFCV, imported, torchs_threads_kept
from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.types import Epochs, Plan, Prepared, Unsupported, option


@option
class Ffcv:
    """FFCV's compiled pipeline on its own threads, through the system's page cache, in our order.

    FFCV writes batches into memory that it uses again `batches_ahead` + 2 batches later, so each is
    copied once more before it is handed out: it is the receiver's then, as any other loader's.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    num_threads: PositiveInt | None
    batches_ahead: PositiveInt

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of (data, label) batches; what numba compiles is compiled here, in every process.

        Raises Unsupported without FFCV.
        """
        honours_only("ffcv", plan, *self.honours)
        path = self.store.open(prepared.folder)
        if not isinstance(path, Path):
            raise Unsupported("rows are in a .beton file: store@loader.store=ffcv gives such")
        with torchs_threads_kept():
            loader = self._loader(path, plan, prepared.num_samples)
        with closed_at_the_end(partial(_batches, loader)) as epochs:
            yield epochs

    def _loader(self, path: Path, plan: Plan, num_samples: int) -> Any:
        ffcv = imported("ffcv.loader", "loader=ffcv", INSTALL_FFCV)
        base = imported("ffcv.traversal_order.base", "loader=ffcv", INSTALL_FFCV)
        return ffcv.Loader(
            str(path),
            batch_size=plan.batch_size,
            num_workers=self.num_threads or 0,  # 0: FFCV takes the cores that it may use
            os_cache=True,
            order=_order(base.TraversalOrder, plan, num_samples),
            seed=plan.seed,
            drop_last=plan.drop_last,
            batches_ahead=self.batches_ahead,
        )


def _order(base: Any, plan: Plan, num_samples: int) -> type:
    class PlansOrder(base):
        """The order of the plan."""

        def sample_order(self, epoch: int) -> np.ndarray:
            indices = epoch_indices(plan.order, num_samples, plan.seed, epoch)
            return indices.numpy().astype(np.uint64)

    return PlansOrder


def _batches(loader: Any, epoch: int) -> Batches:
    loader.next_epoch = epoch
    with torchs_threads_kept():
        iterator = iter(loader)
    try:
        for data, label in iterator:
            yield data.clone(), label[:, 0].clone()
    finally:
        _end(iterator)


def _end(iterator: Any) -> None:
    """Return when FFCV's thread has ended: it is given nothing more to do, and is not left waiting
    for a place for what it has done."""
    iterator.iter_ixes = iter(())
    iterator.terminate_event.set()
    while iterator.is_alive():
        with suppress(Empty):
            iterator.output_queue.get(timeout=0.1)
