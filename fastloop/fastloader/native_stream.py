"""Streams of the native core: iterators over an epoch's batches, made by threads without Python.

`open_stream` starts one. The core computes the order of the samples itself, or Python feeds it with
the indices piece by piece.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from torch._C import _from_dlpack  # pyright: ignore[reportAttributeAccessIssue]

from fastloop.fastloader.batch_memory import open_pool
from fastloop.fastloader.columns.column import Column
from fastloop.fastloader.columns.native_rows import open_column
from fastloop.fastloader.load_native_core import load_core
from fastloop.fastloader.native_order import NativeOrder, Piece, is_fed, open_order

BLOCK_BYTES = 1 << 20
"""Batches are made in blocks of about this size: it fits a core's own cache, and the hand-over of
one costs less than a hundredth of making it."""
BLOCK_BYTES_AHEAD = 4 << 20
"""Bytes of blocks that are made ahead. They are so few that the blocks are still in the shared
cache when they are used."""
MIN_BLOCKS = 2
"""Minimum number of blocks that are made ahead."""
MAX_BLOCKS = 1 << 16
"""Maximum number of blocks that are made ahead. Together they have 64 GiB, which holds any epoch
that fits into memory."""
MAX_BATCH_SIZE = 1 << 40
"""A number of samples that no epoch reaches; products with it fit into 64 bits."""
MOST_LAZY_ROWS = 4096
"""Maximum number of rows that are made ahead if a user's sampler is read as the epoch proceeds: the
sampler may be slow, or endless."""
MOST_PIECES = 1 << 16
"""Maximum number of pieces of an epoch that are recorded."""


@dataclass(frozen=True)
class NativeColumns:
    """Columns of one length, as the core reads them."""

    opened: tuple[Any, ...]
    num_samples: int
    row_nbytes: int
    """Bytes of a delivered sample, of all columns."""


def open_columns(columns: Sequence[Column]) -> NativeColumns | None:
    """The core's columns; None without the core, or if it can't make one of them."""
    opened = tuple(open_column(column) for column in columns)
    if None in opened:
        return None
    return NativeColumns(opened, len(columns[0]), sum(column.spec.nbytes for column in columns))


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """The columns and batches of streams, and the number of threads besides the loop's."""

    columns: NativeColumns
    batch_size: int
    """0: the sizes of the batches come with the pieces of the order."""
    drop_last: bool = False
    num_threads: int = 1
    ahead: int | None = None
    """Blocks that each thread makes ahead; None: BLOCK_BYTES_AHEAD for all threads together."""
    is_lazy: bool = False
    """True if a user's sampler gives the order: no more of it is read ahead than needed."""

    @cached_property
    def block_nbytes(self) -> int:
        """Approximate number of bytes of a block."""
        # A block waits for all of its indices: blocks of a slow sampler are small.
        if not self.is_lazy:
            return BLOCK_BYTES
        return min(BLOCK_BYTES, max(1, self.columns.row_nbytes) * MOST_LAZY_ROWS // MIN_BLOCKS)

    @cached_property
    def max_blocks(self) -> int:
        """The number of blocks made ahead."""
        if self.ahead is not None:
            return min(MAX_BLOCKS, self.ahead * max(1, self.num_threads))
        if self.is_lazy:
            return MIN_BLOCKS
        return max(MIN_BLOCKS, BLOCK_BYTES_AHEAD // max(BLOCK_BYTES, self.batch_nbytes))

    @property
    def batch_nbytes(self) -> int:
        """Bytes of a batch."""
        return self.columns.row_nbytes * self.batch_size


class PieceFeeder:
    """The pieces of an order, which the core asks for when it has less than a block of indices."""

    def __init__(self, pieces: Iterator[Piece], finish: Callable[[], None]) -> None:
        self._pieces = pieces
        self._finish = finish
        self._error: BaseException | None = None

    def __call__(self, stream: Any) -> None:
        """Feed the core's stream with the next piece."""
        try:
            piece = next(self._pieces, None)
        except BaseException as error:
            # Raised by end(), after the batches before it have been delivered.
            piece = None
            self._error = error
        if piece is None:
            stream.finish()
        else:
            indices, sizes = piece
            stream.feed(np.ascontiguousarray(indices), sizes)

    def end(self) -> None:
        """Raise the error with which the pieces have ended; without one, call `finish`."""
        if self._error is not None:
            raise self._error from None
        self._finish()


@dataclass(frozen=True)
class Delivery:
    """Settings for handing over and counting batches, and the first index to deliver."""

    assemble: Callable[[tuple[torch.Tensor, ...]], Any] | None = tuple
    """(a tensor of each column) -> batch; None: the only column's tensor is the batch."""
    delivered: np.ndarray = field(default_factory=lambda: np.zeros((), np.int64))
    """An int64 array without dimensions, to which 1 is added with each batch."""
    finish: Callable[[], None] = lambda: None
    """A function that is called after the last batch."""
    start: int = 0
    """The first index that is delivered."""


@dataclass
class WorkTimes:
    """The times of the threads' work: when each has made which piece of the batches of epochs."""

    epochs: list[np.ndarray] = field(default_factory=list)
    """(MOST_PIECES, 4) int64 of each: the thread (0: the loop's), the piece's first batch, its
    start and its stop in nanoseconds of time.perf_counter_ns; unused rows are 0."""

    def room(self) -> np.ndarray:
        """The array to which the native core writes the pieces of another epoch."""
        self.epochs.append(np.zeros((MOST_PIECES, 4), np.int64))
        return self.epochs[-1]

    def read(self) -> np.ndarray:
        """The (pieces, 4) rows of all epochs, which must have ended."""
        return np.concatenate([np.empty((0, 4), np.int64), *(e[e[:, 3] > 0] for e in self.epochs)])


@dataclass(frozen=True)
class MemoryPools:
    """Memory of batches, with idle threads, and memory of orders, shared by several epochs."""

    batches: Any = field(default_factory=open_pool)
    orders: Any = field(default_factory=open_pool)


class StreamCalls(NamedTuple):
    """The functions that the core's stream calls, in the order of bindings/stream_arguments.c."""

    wrap: Callable[[Any], torch.Tensor]
    """DLPack capsule of a column of the batch -> tensor."""
    wrap_normally: Callable[[Any], torch.Tensor]
    """As `wrap`, for inference mode, in which tensors would be inference tensors."""
    is_inference: Callable[[], bool]
    """True if the caller is in inference mode."""
    assemble: Callable[[tuple[torch.Tensor, ...]], Any] | None
    """See Delivery."""
    pull: Callable[[Any], None] | None
    """Feeds the stream with the next piece of its order; None: the core has all of the order."""
    end: Callable[[], None]
    """Called after the last batch."""


def open_stream(
    plan: StreamPlan,
    order: NativeOrder,
    pools: MemoryPools,
    delivery: Delivery = Delivery(),
    times: WorkTimes | None = None,
) -> Any:
    """An iterator over the batches of an epoch, in order.

    times: records the pieces' times; None: nothing is recorded.

    Its threads start at once, and end with its close() or if the epoch is left early; those of a
    whole epoch wait a second for the next one that shares the pools. A batch owns its memory, which
    is used again when its last tensor is gone; it may be kept and written to. Each next() makes
    batches, too, before it waits. In a fork of the process, which has none of the threads,
    RuntimeError is raised.

    Iteration raises IndexError at the batch that has an index out of bounds, without reading that
    row, and any error of reading the pieces, after the batches before it.
    """
    # NativeColumns exist only if there is a core.
    core = load_core()
    assert core is not None
    feeder = None
    end = delivery.finish
    # The feeder's end() raises the error of a sampler after the batches before it.
    if is_fed(order):
        feeder = PieceFeeder(order, delivery.finish)
        end = feeder.end
    # None of these functions may refer to the stream: a cycle of references would keep an unused
    # stream alive.
    calls = StreamCalls(
        wrap=_from_dlpack,
        wrap_normally=_wrap_normally,
        is_inference=torch.is_inference_mode_enabled,
        assemble=delivery.assemble,
        pull=feeder,
        end=end,
    )
    # Without events, nothing is recorded.
    recording = {"events": times.room()} if times else {}
    stream = core.Stream(
        columns=plan.columns.opened,
        order=open_order(order, plan.columns.num_samples, pools.orders),
        pool=pools.batches,
        calls=calls,
        delivered=delivery.delivered,
        start=delivery.start,
        batch_size=min(plan.batch_size, MAX_BATCH_SIZE),
        drop_last=plan.drop_last,
        num_threads=plan.num_threads,
        block_nbytes=plan.block_nbytes,
        max_blocks=plan.max_blocks,
        **recording,
    )
    OPEN_STREAMS.add(stream)
    return stream


def _wrap_normally(capsule: Any) -> torch.Tensor:
    """The tensor as one that is not an inference tensor, so that batches don't depend on the
    caller's mode."""
    with torch.inference_mode(False):
        return _from_dlpack(capsule)


OPEN_STREAMS: WeakSet[Any] = WeakSet()
"""The streams with threads that may still run."""


@atexit.register
def _close_all() -> None:
    """End all threads before the interpreter frees the memory that they read."""
    for stream in list(OPEN_STREAMS):
        stream.close()
