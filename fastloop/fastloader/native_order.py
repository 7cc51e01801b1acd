"""The orders in which the native core reads samples, computed by the core or given by indices.

`open_order` opens an order for a stream of the core. `read_pieces` reads an order for Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from fastloop.fastloader.feistel import FeistelPermutation
from fastloop.fastloader.load_native_core import load_core

ARRAY, SEQUENTIAL, RANDPERM, FEISTEL, FED = range(5)
"""Numbers of the core's kinds of orders."""
PIECE = 1 << 16
"""Number of indices that are computed at once if Python makes the batches."""
Piece = tuple[np.ndarray, np.ndarray | None]
"""A part of an order: indices, and the int64 sizes of their batches. None: the batch size is
fixed."""


@dataclass(frozen=True)
class SourceOrder:
    """The samples in the order of the source.

    In this order and the two below, a rank has every world_size-th index, from place `rank` on.
    """

    num_samples: int
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True)
class SeededOrder:
    """The order of torch.randperm for a seed, for fewer than 2^32 / 20 samples."""

    num_samples: int
    seed: int
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True)
class FeistelOrder:
    """The order of a FeistelPermutation, a random order without memory for each index."""

    permutation: FeistelPermutation
    rank: int = 0
    world_size: int = 1


NativeOrder = np.ndarray | SourceOrder | SeededOrder | FeistelOrder | Iterator[Piece]
"""An array of int32 or int64 indices, an order that the core computes, or an iterator over pieces.
The iterator is read as the epoch proceeds."""


def is_fed(order: NativeOrder) -> TypeGuard[Iterator[Piece]]:
    """True if the order is an iterator over pieces, with which Python feeds the core."""
    # isinstance(order, Iterator) takes longer. This function is called between two epochs.
    return not isinstance(order, (SeededOrder, SourceOrder, FeistelOrder, np.ndarray))


def open_order(order: NativeOrder, num_samples: int, pool: Any = None) -> Any:
    """The core's object for an order.

    num_samples: number of samples of the source. pool: the core's pool of memory, from which a
    SeededOrder takes its memory; None: no pool. Raises ValueError for a SeededOrder of 2^32 / 20
    samples or more.
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
    """int64 array of `count` indices of the core's order, from place `start` on.

    order: an order that no stream of the core reads.
    """
    out = np.empty(count, np.int64)
    order.read(start, out)
    return out


def read_pieces(order: SeededOrder) -> Iterator[np.ndarray]:
    """Yield the int64 indices of an order with world_size 1, in pieces of PIECE indices."""
    opened = open_order(order, order.num_samples)
    count = order.num_samples
    for start in range(0, count, PIECE):
        yield read_order(opened, start, min(PIECE, count - start))
