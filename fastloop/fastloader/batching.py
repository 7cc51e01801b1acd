"""An epoch's indices, checked and cut into groups of whole batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_BATCHES = 4096
"""Most batches of a group."""


@dataclass(frozen=True)
class BatchGroup:
    """Whole batches whose rows are gathered at once."""

    indices: np.ndarray
    """int64, of all batches."""
    sizes: int | list[int]
    """Rows of each batch, where the last may have fewer; or a list with the rows of every one."""

    def batch_sizes(self) -> list[int]:
        """Rows of every batch."""
        if isinstance(self.sizes, list):
            return self.sizes
        whole, short = divmod(len(self.indices), self.sizes)
        return [self.sizes] * whole + [short] * bool(short)

    def split(self) -> list[list[int]]:
        """The indices of every batch."""
        stops = np.cumsum(self.batch_sizes())[:-1]
        return [indices.tolist() for indices in np.split(self.indices, stops)]


def check_indices(indices: np.ndarray, num_samples: int) -> np.ndarray:
    """Convert to int64; raises IndexError for an index outside of [0, num_samples).

    Checked once, here: the gather itself clips, because numpy's check there would copy every batch
    once more.
    """
    indices = np.ascontiguousarray(_integer_array(indices), np.int64)
    if len(indices) and indices.view(np.uint64).max() >= num_samples:  # negative ones are huge
        wrong = indices[(indices < 0) | (indices >= num_samples)][0]
        raise IndexError(f"index {wrong} is out of bounds for {num_samples} samples")
    return indices


def _integer_array(indices: Any) -> np.ndarray:
    """Raises ValueError for a mask, for floats, and for more than one dimension."""
    array = np.asarray(indices)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        actual = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"a sampler gives one-dimensional integers, got {actual}")
    return array


def group_batches(
    pieces: Iterable[np.ndarray], batch_size: int, drop_last: bool, counts: Iterable[int] | None
) -> Iterator[BatchGroup]:
    """Cut an epoch's indices into groups.

    counts: the number of batches of each group; None: as many as a piece holds together with the
    remainder of the piece before.
    """
    rest, remaining_counts = np.empty(0, np.int64), iter(counts or ())
    for piece in _merge_short_pieces(pieces, batch_size):
        rest = np.concatenate([rest, piece]) if len(rest) else piece
        whole, start = len(rest) - len(rest) % batch_size, 0
        while start < whole:
            stop = min(whole, start + batch_size * next(remaining_counts, whole))
            yield BatchGroup(rest[start:stop].astype(np.int64, copy=False), batch_size)
            start = stop
        rest = rest[whole:]
    if len(rest) and not drop_last:
        yield BatchGroup(rest.astype(np.int64, copy=False), batch_size)


def _merge_short_pieces(pieces: Iterable[np.ndarray], batch_size: int) -> Iterator[np.ndarray]:
    """Concatenate pieces until they fill a batch; appending them to the rest one by one would copy
    the whole rest for each."""
    pending: list[np.ndarray] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += len(piece)
        if count >= batch_size:
            yield np.concatenate(pending) if len(pending) > 1 else piece
            pending, count = [], 0
    if pending:
        yield np.concatenate(pending)


def concatenate_batches(batches: Sequence[np.ndarray]) -> BatchGroup:
    """The group of these batches' indices."""
    return BatchGroup(np.concatenate(batches), [len(batch) for batch in batches])


def skip_batches(groups: Iterable[BatchGroup], count: int) -> Iterator[BatchGroup]:
    """The groups without the first `count` batches."""
    for group in groups:
        sizes = group.batch_sizes() if count else []
        if count and len(sizes) <= count:
            count -= len(sizes)
        elif count:
            yield BatchGroup(group.indices[sum(sizes[:count]) :], sizes[count:])
            count = 0
        else:
            yield group


def skip_indices(pieces: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
    """The pieces without the first `count` indices."""
    for piece in pieces:
        skipped = min(count, len(piece))
        count -= skipped
        if not count:
            yield piece[skipped:]
