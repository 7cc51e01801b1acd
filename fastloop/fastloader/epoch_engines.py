"""Choose the engine that makes a loader's batches: the native core or Python."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.large_files import may_read_directly
from fastloop.fastloader.loader_settings import WORKER_SETTINGS, LoaderSettings
from fastloop.fastloader.native_epochs import NativeEpochs
from fastloop.fastloader.native_stream import StreamPlan
from fastloop.fastloader.order import EpochOrder, LoaderOrder
from fastloop.fastloader.python_epochs import PythonEpochs
from fastloop.fastloader.reading import Reading


def choose_engine(
    settings: LoaderSettings, reading: Reading, order: EpochOrder
) -> NativeEpochs | PythonEpochs:
    """The engine for batches of this order: the native core if it can make them, else Python.

    This is the only place that chooses.
    """
    native = reading.native
    is_plain = reading.pipeline.is_plain
    shows_views = not settings.copy and order.is_sequential and is_plain
    is_batched = not settings.is_unbatched or settings.asks_for_lists
    python = PythonEpochs(reading, settings.transform, is_batched, shows_views)
    # The source is a tree with columns that the core can't make, a Dataset, or an iterable.
    if native is None or not isinstance(order, LoaderOrder):
        return python
    # The core delivers rows as they are, in new memory of the CPU.
    if settings.transform is not None or not is_plain or shows_views:
        return python
    # The core asks for indices when it needs them, not when DataLoader would.
    if order.draws.is_paced:
        return python
    # Large files are read faster past the page cache if the order has long stretches of rows.
    if may_read_directly(reading.source, order.shuffle):
        return python
    plan = StreamPlan(
        columns=native.columns,
        batch_size=0 if order.batch_sampler is not None else order.rows_per_batch,
        drop_last=order.drop_last,
        num_threads=reading.pipeline.tuning.num_threads,
        ahead=settings.prefetch_factor,
        is_lazy=order.is_lazy,
    )
    return NativeEpochs(native, plan)


def settings_in_use(reading: Reading, engine: NativeEpochs | PythonEpochs) -> Sequence[str]:
    """The settings of DataLoader's workers that have an effect, and in_order if it has one."""
    if reading.processes is not None:
        return (*WORKER_SETTINGS, "in_order")
    pipeline = reading.pipeline
    is_python = isinstance(engine, PythonEpochs)
    if is_python and not pipeline.in_order and pipeline.tuning.num_threads > 1:
        return ("in_order",)
    if isinstance(reading.source, IterableSource) and reading.source.workers is not None:
        # Its processes start with each epoch, and never persist.
        return [name for name in WORKER_SETTINGS if name != "persistent_workers"]
    return ()
