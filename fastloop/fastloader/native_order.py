"""The orders in which the native core reads samples: it computes them, or is given their indices.

`open_order` opens one for a stream, and `read_pieces` reads one for Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from fastloop.fastloader.feistel import FeistelPermutation
from fastloop.fastloader.load_native_core import load_core

ARRAY, SEQUENTIAL, RANDPERM, FEISTEL, FED = range(5)
"""The core's kinds of orders."""
PIECE = 1 << 16
"""Number of indices of a core's order that are drawn at once if Python makes the batches."""
Piece = tuple[np.ndarray, np.ndarray | None]
"""Indices, and the int64 sizes of their batches if the batch size is not fixed."""


@dataclass(frozen=True)
class SourceOrder:
    """The samples in their own order; a rank has every world_size-th of them, from `rank` on."""

    num_samples: int
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True)
class SeededOrder:
    """The order of torch.randperm for this seed, of fewer than 2^32 / 20 samples."""

    num_samples: int
    seed: int
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True)
class FeistelOrder:
    """The order of a FeistelPermutation."""

    permutation: FeistelPermutation
    rank: int = 0
    world_size: int = 1


NativeOrder = np.ndarray | SourceOrder | SeededOrder | FeistelOrder | Iterator[Piece]
"""An array of int32 or int64 indices, an order that the core computes, or pieces that are read as
the epoch proceeds."""


def is_fed(order: NativeOrder) -> TypeGuard[Iterator[Piece]]:
    """True if the core is fed with the order piece by piece."""
    # isinstance(order, Iterator) takes longer, and this is asked between two epochs.
    return not isinstance(order, (SeededOrder, SourceOrder, FeistelOrder, np.ndarray))


def open_order(order: NativeOrder, num_samples: int, pool: Any = None) -> Any:
    """The core's order, which takes its memory from the pool, if there is one.

    Raises ValueError for 2^32 / 20 samples or more of a SeededOrder.
    """
    core = load_core()
    assert core is not None
    match order:
        case np.ndarray():
            return core.Order(ARRAY, num_samples, array=np.ascontiguousarray(order))
        case SourceOrder():
            return core.Order(SEQUENTIAL, order.num_samples, order.rank, order.world_size)
        case SeededOrder():
            # Only this order needs memory for each sample.
            settings = {} if pool is None else {"pool": pool}
            seed = order.seed % 2**64
            return core.Order(
                RANDPERM, order.num_samples, order.rank, order.world_size, seed, **settings
            )
        case FeistelOrder():
            count = order.permutation.num_samples
            tables = tuple(map(np.ascontiguousarray, order.permutation.functions))
            return core.Order(FEISTEL, count, order.rank, order.world_size, tables=tables)
    return core.Order(FED, num_samples)


def read_order(order: Any, start: int, count: int) -> np.ndarray:
    """int64 indices of an order of the core that no stream reads."""
    out = np.empty(count, np.int64)
    order.read(start, out)
    return out


def read_pieces(order: SeededOrder) -> Iterator[np.ndarray]:
    """int64 indices of the order of one process, drawn piece by piece."""
    opened = open_order(order, order.num_samples)
    count = order.num_samples
    for start in range(0, count, PIECE):
        yield read_order(opened, start, min(PIECE, count - start))
