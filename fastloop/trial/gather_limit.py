"""Measure the limits for loaders of rows: the rates at which this machine can gather random rows.

`gather_limit` gathers rows as they are; `conversion_limit` also converts bytes to scaled floats.

Several engines, such as torch.index_select or FastLoader's native core, gather with one thread per
usable core, into a buffer of one batch and into a buffer that stays in cache. The fastest rate is
the limit. A single engine would not give a limit: on one machine the engines range from 77 to 182
thousand rows of 150 KB per second. A sequential copy of the same rows by the same threads shows the
share of the memory's speed that random access reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.spans import now_ns
from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.convert import converted
from fastloop.fastloader.columns.native_rows import gather_into, open_column
from fastloop.fastloader.load_native_core import has_core
from fastloop.trial.rate_on_cores import budget_ns, cores_of_rank, rate_on_cores

MAX_SOURCE_BYTES = 256 << 20
"""Maximum size of all rows. Most processors have a smaller cache. On the others, and if there are
fewer rows, some rows are read from cache."""
CACHED_BUFFER_BYTES = 512 << 10
"""Size of the buffer that stays in a core's cache."""
FLOAT_NBYTES = 4
"""Bytes of a float32."""
MEMCPY = "memcpy"
"""Name of the sequential copy among the ways to gather rows."""
FACTOR, OFFSET = 0.0139, -0.81
"""Scale and offset of the converted floats. All values take the same time, except scale 1 and
offset 0."""


@dataclass(frozen=True)
class Gatherer:
    """A function by which one thread gathers rows into a buffer, and the batches to gather."""

    gather: Callable[[Any], Any]
    """Gathers the rows of a batch into `out`."""
    batches: Sequence[Any]
    """Arguments of `gather`, made in advance; each fills the buffer."""
    out: np.ndarray
    """The output buffer."""

    def run(self, stop_ns: int, reads: bool) -> int:
        """Gather until `stop_ns` on the clock of `now_ns`, and return the number of rows.

        reads: True if each gathered byte is read as well.
        """
        # Summing machine words is the fastest way to read. Up to 7 bytes at the end are left out.
        words = self.out.reshape(-1).view(np.uint8)[: self.out.nbytes // 8 * 8].view(np.int64)
        num_rows = 0
        while True:
            for batch in self.batches:
                self.gather(batch)
                if reads:
                    words.sum()
                num_rows += len(self.out)
                if now_ns() >= stop_ns:
                    return num_rows


MakeGatherer = Callable[[np.ndarray, int, int], Gatherer]
"""(rows as a matrix of bytes, rows in the output buffer, number of the thread) -> Gatherer."""


def gather_limit(
    num_rows: int, row_nbytes: int, batch_size: int, reads: bool, window_s: float
) -> Limit:
    """Rows per second that this machine can gather.

    num_rows, row_nbytes: number and size of the rows of the data. reads: True if every gathered
    byte is read once more, as the step does if bytes of batches may be unread. window_s: seconds
    that measuring takes, within 0.05 and 1. Measuring needs at most MAX_SOURCE_BYTES for the rows,
    and the memory of a batch for each core.
    """
    source = _make_source(num_rows, row_nbytes)
    sizes = {batch_size, CACHED_BUFFER_BYTES // row_nbytes}
    ways = {**gathers(), MEMCPY: _copy_in_order}
    rates = _best_rates(ways, source, sizes, reads, window_s)
    memcpy_rate = rates.pop(MEMCPY)
    engine, best = max(rates.items(), key=lambda item: item[1])
    origin = LimitOrigin(
        kind="rows", engine=engine, cores=cores_of_rank(), memcpy_fraction=best / memcpy_rate
    )
    return Limit(samples_per_s=best, origin=origin)


def conversion_limit(
    num_rows: int, row_nbytes: int, batch_size: int, reads: bool, window_s: float
) -> Limit:
    """Rows of bytes per second that this machine can gather and convert to scaled floats.

    The arguments are as for `gather_limit`.
    """
    source = _make_source(num_rows, row_nbytes)
    # Each row takes space in the cache for its bytes and for its floats.
    sizes = {batch_size, CACHED_BUFFER_BYTES // ((1 + FLOAT_NBYTES) * row_nbytes)}
    rates = _best_rates(conversions(), source, sizes, reads, window_s)
    engine, best = max(rates.items(), key=lambda item: item[1])
    origin = LimitOrigin(kind="converted rows", engine=engine, cores=cores_of_rank())
    return Limit(samples_per_s=best, origin=origin)


def _make_source(num_rows: int, row_nbytes: int) -> np.ndarray:
    """The rows to gather: a matrix of bytes, all of them ones."""
    # np.zeros would map all pages to the same page of the kernel, which stays in cache.
    return np.ones((max(1, min(num_rows, MAX_SOURCE_BYTES // row_nbytes)), row_nbytes), np.uint8)


def _best_rates(
    ways: Mapping[str, MakeGatherer],
    source: np.ndarray,
    sizes: Collection[int],
    reads: bool,
    window_s: float,
) -> dict[str, float]:
    """Name of a way to gather -> rows per second with the best of the buffers.

    sizes: numbers of rows of the buffers to try. reads, window_s: as for `gather_limit`.
    """
    buffers = sorted({max(1, min(rows, len(source))) for rows in sizes})
    slice_ns = budget_ns(window_s) // (len(ways) * len(buffers))
    with one_torch_thread():
        return {
            name: max(_gather_rate(make, source, rows, slice_ns, reads) for rows in buffers)
            for name, make in ways.items()
        }


def _gather_rate(
    make: MakeGatherer, source: np.ndarray, buffer_rows: int, slice_ns: int, reads: bool
) -> float:
    """Rows per second of all usable cores, with one gatherer for each core.

    slice_ns: nanoseconds to measure.
    """
    gatherers = [make(source, buffer_rows, thread) for thread in range(cores_of_rank())]

    def run(thread: int, stop_ns: int) -> int:
        return gatherers[thread].run(stop_ns, reads)

    return rate_on_cores(run, len(gatherers), slice_ns)


def gathers() -> dict[str, MakeGatherer]:
    """Every way to gather rows, by the name that results record as the limit's engine."""
    ways = {"index_select": _index_select, "np.take": _np_take}
    return ways | ({"native core": _native} if has_core() else {})


def conversions() -> dict[str, MakeGatherer]:
    """Every way to gather rows of bytes as scaled floats, by the name of the limit's engine."""
    ways = {
        "index_select, copy_": _index_select_and_scale,
        "np.take, np.multiply": _np_take_and_scale,
    }
    return ways | ({"native core": _native_conversion} if has_core() else {})


def _random_indices(source: np.ndarray, buffer_rows: int, thread: int) -> np.ndarray:
    """Random row numbers, (batches, buffer_rows) int64; the thread's number is the seed."""
    num_batches = max(1, min(len(source), 1 << 16) // buffer_rows)
    return np.random.default_rng(thread).integers(len(source), size=(num_batches, buffer_rows))


def _index_select(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by torch.index_select."""
    rows = torch.from_numpy(source)
    out = torch.zeros((buffer_rows, source.shape[1]), dtype=torch.uint8)
    batches = list(torch.from_numpy(_random_indices(source, buffer_rows, thread)))
    return Gatherer(lambda index: torch.index_select(rows, 0, index, out=out), batches, out.numpy())


def _np_take(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by np.take."""
    out = np.zeros((buffer_rows, source.shape[1]), np.uint8)
    batches = list(_random_indices(source, buffer_rows, thread))
    # In its default mode, np.take would write into a temporary copy of `out`.
    return Gatherer(
        lambda index: np.take(source, index, axis=0, out=out, mode="clip"), batches, out
    )


def _copy_in_order(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer that copies blocks of neighbouring rows, one after another."""
    # Each thread begins at a different row. Otherwise a thread would find rows in the shared cache
    # that another thread has just read.
    out = np.zeros((buffer_rows, source.shape[1]), np.uint8)
    starts = np.arange(0, len(source) - buffer_rows + 1, buffer_rows)
    starts = np.roll(starts, -thread * len(starts) // cores_of_rank()).tolist()
    return Gatherer(lambda start: np.copyto(out, source[start : start + buffer_rows]), starts, out)


def _index_select_and_scale(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by torch.index_select, which converts the rows afterwards."""
    gatherer = _index_select(source, buffer_rows, thread)
    gathered = torch.from_numpy(gatherer.out)
    floats = torch.zeros(buffer_rows, source.shape[1])

    def convert(index: torch.Tensor) -> None:
        gatherer.gather(index)
        floats.copy_(gathered).mul_(FACTOR).add_(OFFSET)

    return Gatherer(convert, gatherer.batches, floats.numpy())


def _np_take_and_scale(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by np.take, which converts the rows afterwards, in two passes."""
    gatherer = _np_take(source, buffer_rows, thread)
    floats = np.zeros((buffer_rows, source.shape[1]), np.float32)

    def convert(index: np.ndarray) -> None:
        gatherer.gather(index)
        np.multiply(gatherer.out, np.float32(FACTOR), out=floats)
        np.add(floats, np.float32(OFFSET), out=floats)

    return Gatherer(convert, gatherer.batches, floats)


def _native(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by FastLoader's core, which prefetches rows into the cache."""
    column = open_column(array_column(source))
    out = np.zeros((buffer_rows, source.shape[1]), np.uint8)
    batches = list(_random_indices(source, buffer_rows, thread))
    return Gatherer(lambda index: gather_into([column], index, [out]), batches, out)


def _native_conversion(source: np.ndarray, buffer_rows: int, thread: int) -> Gatherer:
    """A gatherer by FastLoader's core, which gathers and converts each row in one pass."""
    column = open_column(converted(source, scale=FACTOR, mean=-OFFSET))
    floats = np.zeros((buffer_rows, source.shape[1]), np.float32)
    out = floats.view(np.uint8)
    batches = list(_random_indices(source, buffer_rows, thread))
    return Gatherer(lambda index: gather_into([column], index, [out]), batches, floats)
