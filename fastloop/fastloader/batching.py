"""Read the indices of an epoch from a sampler in pieces, check them, and cut them into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import index
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

ARRAYS = (torch.Tensor, np.ndarray, list)
"""Types of samplers that are read at once, not piece by piece."""
MOST_INDICES = 4096
"""Maximum number of indices in a piece of a sampler, unless one batch has more: endless and lazy
samplers are read this far ahead, and no further."""
MOST_BATCHES = 64
"""Maximum number of batches in a group."""

Groups = Iterator[list[np.ndarray]]
"""The groups of an epoch: each is a list of the batches that are made together, as indices."""


@runtime_checkable
class PiecewiseSampler(Protocol):
    """A sampler that computes its indices as the epoch proceeds."""

    def pieces(self) -> Iterable[np.ndarray]:
        """The integer indices of an epoch, piece by piece."""
        ...


def check_indices(indices: np.ndarray, num_samples: int) -> np.ndarray:
    """Convert to int64; raises IndexError for an index outside of [0, num_samples).

    Indices are checked only here. The gather clips them, because numpy's check would copy every
    batch once more.
    """
    indices = np.ascontiguousarray(_integer_array(indices), np.int64)
    # Negative indices are huge as unsigned numbers, so that one comparison finds both kinds.
    if len(indices) and indices.view(np.uint64).max() >= num_samples:
        wrong = indices[(indices < 0) | (indices >= num_samples)][0]
        raise IndexError(f"index {wrong} is out of bounds for {num_samples} samples")
    return indices


def to_array(batch: Any) -> np.ndarray:
    """The indices of a batch sampler's batch, which may be any iterable of them."""
    array = np.asarray(batch)
    # numpy takes a set or a generator for one object.
    is_iterable = isinstance(batch, Iterable) and not isinstance(batch, ARRAYS)
    return np.asarray(list(batch)) if array.ndim == 0 and is_iterable else array


def _integer_array(indices: Any) -> np.ndarray:
    """The indices as an array; raises ValueError for a mask, for floats, and for more than one
    dimension.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        actual = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"a sampler gives one-dimensional integers, got {actual}")
    return array


def sampler_pieces(sampler: Iterable[Any], num_samples: int, batch_size: int) -> Iterator[Any]:
    """int64 indices of whole batches, in pieces that grow; an array is one piece.

    Iteration raises IndexError for an index out of bounds, and ValueError for anything but
    integers.
    """
    if isinstance(sampler, ARRAYS):
        yield check_indices(np.asarray(sampler), num_samples)
        return
    # The first piece is one batch, so that the first batch is ready soon.
    indices = iter(sampler)
    size = batch_size
    while len(piece := _next_indices(indices, size)):
        yield check_indices(piece, num_samples)
        size = max(batch_size, min(2 * size, MOST_INDICES - MOST_INDICES % batch_size))


def _next_indices(indices: Iterator[Any], count: int) -> np.ndarray:
    return to_integers(islice(indices, count))


def to_integers(indices: Iterable[Any]) -> np.ndarray:
    """int64 indices; raises ValueError for items that are not single indices."""
    try:
        return np.fromiter(map(index, indices), np.int64)
    except TypeError as error:
        raise ValueError(f"a sampler gives integers, batch_sampler= takes lists: {error}") from None


def cut_batches(
    pieces: Iterable[np.ndarray], batch_size: int, drop_last: bool
) -> Iterator[Iterator[np.ndarray]]:
    """For each piece in which a batch ends, an iterator over the int64 batches that end in it. A
    caller must read it before it asks for the next one. A short last batch has an iterator of its
    own, unless `drop_last` drops it."""
    pending: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += len(piece)
        if count >= batch_size:
            # A batch may have indices from several pieces: those that fill no batch are kept for
            # the next piece.
            indices = np.concatenate(pending).astype(np.int64, copy=False)
            whole = count - count % batch_size
            yield _slices(indices[:whole], batch_size)
            pending = [indices[whole:]]
            count -= whole
    if count and not drop_last:
        yield iter([np.concatenate(pending).astype(np.int64, copy=False)])


def _slices(indices: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (indices[start : start + size] for start in range(0, len(indices), size))


def group_batches(batches: Iterable[np.ndarray], max_rows: int) -> Iterator[list[np.ndarray]]:
    """Groups of at most max_rows rows, unless one batch has more.

    The first ones have few batches, so that the epoch's first batch is ready soon.
    """
    group: list[np.ndarray] = []
    count = 0
    most = 1
    for batch in batches:
        if group and count + len(batch) > max_rows:
            yield group
            group = []
            count = 0
        group.append(batch)
        count += len(batch)
        if len(group) >= most or count >= max_rows:
            yield group
            group = []
            count = 0
            most = min(2 * most, MOST_BATCHES)
    if group:
        yield group


def skip_indices(pieces: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
    """The pieces without the first `count` indices."""
    for piece in pieces:
        skipped = min(count, len(piece))
        count -= skipped
        if not count:
            yield piece[skipped:]


def sampler_chain(sampler: Any) -> Iterator[Any]:
    """The sampler, the `sampler` that it wraps, if any, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)
