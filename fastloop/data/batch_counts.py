"""Count the samples of batches of texts and lists, and of batches padded to several widths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.core.types import Invalid, Tree, UnclearCount
from fastloop.data.possible_counts import Counts, PartPath, find_counts, is_nested

REMEDY = (
    "let the collate function return a dict of columns, or give the loader the attribute batch_size"
)
CONTAINERS = (dict, list, tuple, Mapping)
"""Types of those parts of a batch that have parts themselves."""
COLUMNS = (torch.Tensor, np.ndarray, list, tuple)
"""Types of those parts of a batch that may have an entry for each sample."""


@dataclass(frozen=True)
class FirstBatches:
    """An epoch that ends after `count` batches."""

    batches: Iterable[Tree]
    count: int

    def __iter__(self) -> Iterator[Tree]:
        return islice(iter(self.batches), self.count)


def count_epoch(
    batches: Iterable[Tree], at_most: int | None = None
) -> tuple[int, Callable[[Tree], int]]:
    """Number of samples of an epoch, and a quick function that counts the samples of a batch.

    Raises UnclearCount as `SampleCounter.count` does, and Invalid as soon as there are more than
    `at_most`.
    """
    counter = SampleCounter(full_size(batches))
    count = 0
    for batch in batches:
        count += counter.count(batch)
        if at_most is not None and count > at_most:
            raise Invalid(f"it yields more than {at_most:,} samples an epoch")
    # A triple of columns of several lengths looks like a list of three samples.
    length = _length_of(batches)
    if counter.reads_lists and length is not None and count > length:
        raise UnclearCount(f"{count:,} samples are read in an epoch of {length:,}; {REMEDY}")
    return count, counter.quick_counter()


def full_size(batches: Iterable[Tree]) -> int | None:
    """Number of samples of a loader's first batch; None if the loader does not tell it.

    >>> full_size(DataLoader(range(5), batch_size=8))
    5
    """
    loader = _loader_of(batches)
    holders = (loader, getattr(loader, "batch_sampler", None))
    sizes = [getattr(holder, "batch_size", None) for holder in holders]
    size = next((each for each in sizes if isinstance(each, int) and each > 0), None)
    length = _length_of(batches)
    return size if size is None or length is None else min(size, length)


def _loader_of(batches: Iterable[Tree]) -> Iterable[Tree]:
    return batches.batches if isinstance(batches, FirstBatches) else batches


def _length_of(batches: Iterable[Tree]) -> int | None:
    """Number of samples of a loader's whole epoch, by its sampler."""
    try:
        return len(_loader_of(batches).sampler)  # pyright: ignore[reportAttributeAccessIssue]
    # An iterable has no sampler, or one without a length.
    except (AttributeError, TypeError):
        return None


class SampleCounter:
    """Counts the samples of the batches of one loader, which are all read in the same way."""

    def __init__(self, size: int | None = None) -> None:
        """size: number of samples of the first batch; no other has more. None: unknown."""
        self._size = size
        self._paths: frozenset[PartPath] | None = None
        self._shortest: PartPath | None = None
        self.reads_lists = False
        """True if only lists of samples have told the numbers, and no column."""

    def count(self, batch: Tree) -> int:
        """Number of samples of a batch of tensors, texts and lists.

        Raises UnclearCount for a batch without a number of samples, or with several possible ones.

        >>> SampleCounter().count({"text": ["a", "b"], "label": torch.tensor([0, 1])})
        2
        """
        counts = find_counts(batch)
        if not counts:
            raise UnclearCount(f"a batch is columns of one length or a list of samples; {REMEDY}")
        possible = self._choose(batch, counts)
        if len(possible) != 1:
            texts = " or ".join(map(str, sorted(possible or counts)))
            raise UnclearCount(f"a batch may be read as {texts} samples; {REMEDY}")
        (count,) = possible
        # The columns or lists that have told the number of samples of every batch so far.
        paths = counts[count]
        self.reads_lists = _are_lists_of_samples(batch, paths)
        self._paths = paths if self._paths is None else self._paths & paths
        self._shortest = min(self._paths, key=len, default=None)
        return count

    def quick_counter(self) -> Callable[[Tree], int]:
        """A function that counts as `count` does, but faster.

        It reads only one part of a batch: a part that has told the number of samples of all batches
        that were counted before. Without such a part, the function is `count`.
        """
        path = self._shortest
        if path is None:
            return self.count

        def count_quickly(batch: Tree) -> int:
            part = _part_of(batch, path)
            if isinstance(part, PackedSequence):
                return int(part.batch_sizes[0])
            # A batch of a later epoch may lack the part, or have a single number in its place.
            is_column = isinstance(part, COLUMNS) and getattr(part, "ndim", 1)
            return len(part) if is_column else self.count(batch)

        return count_quickly

    def _choose(self, batch: Tree, counts: Counts) -> set[int]:
        """The numbers of samples that a batch may have."""
        # A smaller last batch is read as those before it: a pair of columns stays a pair.
        if self._paths is not None:
            known = {count for count, paths in counts.items() if paths & self._paths}
            return known or self._find_sure(batch, counts)
        if self._size in counts:
            return {self._size} if self._size else set()
        return self._find_sure(batch, counts)

    def _find_sure(self, batch: Tree, counts: Counts) -> set[int]:
        """The only number, if a column tells it; otherwise an empty set."""
        if len(counts) != 1:
            return set()
        ((count, paths),) = counts.items()
        # Columns of several lengths, such as a text and its offsets, look like a list of samples.
        if _are_lists_of_samples(batch, paths):
            return set()
        return {count} if paths or self._size is None else set()


def _are_lists_of_samples(batch: Tree, paths: Iterable[PartPath]) -> bool:
    parts = [_part_of(batch, path) for path in paths]
    return bool(parts) and all(
        isinstance(part, tuple | list) and not isinstance(part, PackedSequence) and is_nested(part)
        for part in parts
    )


def _part_of(batch: Tree, path: PartPath) -> Any:
    """A part of a batch; None if the batch lacks it."""
    for key in path:
        is_list = isinstance(batch, list | tuple)
        if not isinstance(batch, CONTAINERS) or (is_list and not isinstance(key, int)):
            return None
        try:
            batch = batch[key]
        except (KeyError, IndexError):
            return None
    return batch
