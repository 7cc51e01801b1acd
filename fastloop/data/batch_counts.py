"""Count the samples of the batches of a user's loader; a batch may have any form.

A batch is a tree of dicts, lists and tuples, with tensors, arrays, texts and numbers as its leaves.
A part of it is the batch itself, or anything in it. A *column* is a part with an entry for each
sample, and a *list of samples* is a list with a whole sample as each entry. Each part allows some
numbers of samples:

=======================================  ======================================================
part of a batch                          numbers of samples that the part allows
=======================================  ======================================================
tensor or array of shape (n, ...)        n
tensor or array without dimensions       1
PackedSequence                           n, the number of sequences in the first step
text or number by itself                 any number
list or tuple of n texts or numbers      n; also 1 if the list is the whole batch
dict, any other named tuple              the numbers that all values allow
list of n tensors, lists or dicts        the numbers that all entries allow; also n if the
                                         entries are alike, because each may be a sample
=======================================  ======================================================

A batch as a whole may allow several numbers. The first of these rules that applies decides:

1. Later batches of a loader have the number that follows from a part that has told the number of
   samples of all batches before: a pair of columns stays a pair.
2. A loader's first batch has batch_size samples, or all samples of an epoch that is shorter, if the
   batch allows this number.
3. A batch has the only number that it allows. This rule does not apply if the number follows from
   lists of samples alone, because columns of several lengths, such as a text and its offsets, look
   like a list of samples; nor, if batch_size is known, from tensors without dimensions alone.

If the rules leave no number or several, the number is unclear, and UnclearCount is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.core.types import Invalid, Tree, UnclearCount

PartPath = tuple[Any, ...]
"""Keys and indices from a batch to a part of it."""
Counts = Mapping[int, frozenset[PartPath]]
"""A number of samples that a batch allows -> the parts of the batch from which it follows."""

REMEDY = (
    "let the collate function return a dict of columns, or give the loader the attribute batch_size"
)
CONTAINERS = (dict, list, tuple, Mapping)
"""Types of those parts of a batch that have parts themselves."""
COLUMNS = (torch.Tensor, np.ndarray, list, tuple)
"""Types of those parts of a batch that may have an entry for each sample."""


@dataclass(frozen=True)
class FirstBatches:
    """An epoch that ends after at most `count` batches."""

    batches: Iterable[Tree]
    count: int

    def __iter__(self) -> Iterator[Tree]:
        return islice(iter(self.batches), self.count)


def count_epoch(
    batches: Iterable[Tree], at_most: int | None = None
) -> tuple[int, Callable[[Tree], int]]:
    """Number of samples of an epoch, and a quick function that counts the samples of a batch.

    Raises UnclearCount if the number of samples of a batch is unclear, or if batches that were read
    as lists of samples have more samples than the loader's sampler. Raises Invalid as soon as there
    are more than `at_most` samples; None: any number is allowed.
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
    """Number of samples of a loader's whole epoch, by its sampler; None if it does not tell."""
    try:
        return len(_loader_of(batches).sampler)  # pyright: ignore[reportAttributeAccessIssue]
    # An iterable has no sampler, or one without a length.
    except (AttributeError, TypeError):
        return None


class SampleCounter:
    """Counts the samples of the batches of one loader, which are all read in the same way."""

    def __init__(self, size: int | None = None) -> None:
        """size: number of samples of the first batch; None: unknown."""
        self._size = size
        self._paths: frozenset[PartPath] | None = None
        """The parts that have told the number of samples of every batch; None before a batch."""
        self.reads_lists = False
        """True if only lists of samples have told the number of the last batch, and no column."""

    def count(self, batch: Tree) -> int:
        """Number of samples of a batch; raises UnclearCount if that number is unclear.

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
        paths = counts[count]
        self.reads_lists = _are_lists_of_samples(batch, paths)
        self._paths = paths if self._paths is None else self._paths & paths
        return count

    def quick_counter(self) -> Callable[[Tree], int]:
        """A function that counts as `count` does, but reads only one part of a batch.

        The part has told the number of samples of all batches that were counted before. Without
        such a part, the function is `count`.
        """
        path = min(self._paths or (), key=len, default=None)
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
        """The numbers of samples that the rules leave, see the module's docstring."""
        if self._paths is not None:
            known = {count for count, paths in counts.items() if paths & self._paths}
            return known or self._find_sure(batch, counts)
        if self._size in counts:
            return {self._size} if self._size else set()
        return self._find_sure(batch, counts)

    def _find_sure(self, batch: Tree, counts: Counts) -> set[int]:
        """The only number that the batch allows, by rule 3; empty if the rule does not apply."""
        if len(counts) != 1:
            return set()
        ((count, paths),) = counts.items()
        if _are_lists_of_samples(batch, paths):
            return set()
        return {count} if paths or self._size is None else set()


def _are_lists_of_samples(batch: Tree, paths: Iterable[PartPath]) -> bool:
    parts = [_part_of(batch, path) for path in paths]
    return bool(parts) and all(
        isinstance(part, tuple | list) and not isinstance(part, PackedSequence) and _is_nested(part)
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


def find_counts(batch: Tree) -> Counts:
    """The numbers of samples that all parts of a batch allow.

    Empty if there is no such number, or if each part allows any number. The result names the parts
    from which each number follows:

    >>> find_counts({"x": torch.zeros(8, 2), "split": "train"})
    {8: frozenset({('x',)})}
    >>> find_counts({"x": torch.zeros(8, 2), "y": torch.zeros(7)})
    {}

    A pair of dicts is ambiguous. It may be one batch of 8 samples, which default_collate makes from
    samples that are pairs of dicts; or it may be a list of two samples:

    >>> sorted(find_counts([{"text": ["a"] * 8}, {"text": ["b"] * 8}]))
    [2, 8]
    """
    return _find(batch, ()) or {}


def _find(node: Any, path: PartPath) -> Counts | None:
    """The numbers of samples that a part of a batch allows; None if any number, as for a text.

    path: the path of the part in the batch.
    """
    # A packed sequence has a row for each step of each sample; the first step has all samples.
    if isinstance(node, PackedSequence):
        return {int(node.batch_sizes[0]): frozenset({path})}
    if isinstance(node, torch.Tensor | np.ndarray):
        return {len(node): frozenset({path})} if node.ndim else {1: frozenset()}
    if isinstance(node, Mapping):
        return _agree(_find(value, (*path, key)) for key, value in node.items())
    return _find_in_list(node, path) if _is_list(node) else None


def _find_in_list(node: Sequence[Any], path: PartPath) -> Counts | None:
    """The numbers of samples that a list or tuple at `path` allows; None: any number.

    The list may be a column, a list of columns or a list of samples.
    """
    here = frozenset({path})
    if node and not _is_nested(node):
        # A flat list that stands alone is ambiguous: its texts may be one for each sample, or all
        # belong to a single sample.
        alone: Counts = {} if path else {1: frozenset()}
        return {**alone, len(node): here}
    counts = _agree(_find(each, (*path, index)) for index, each in enumerate(node))
    # The fields of a named tuple are columns. Other lists of entries that are alike may be lists of
    # samples.
    if hasattr(node, "_fields") or not any(map(_has_leaf, node)) or not _are_alike(node):
        return counts
    counts = counts or {}
    return {**counts, len(node): here | counts.get(len(node), frozenset())}


def _agree(parts: Iterable[Counts | None]) -> Counts | None:
    """The numbers of samples that all parts allow; None if each part allows any number."""
    limiting = [part for part in parts if part is not None]
    if not limiting:
        return None
    common = set(limiting[0]).intersection(*limiting[1:])
    return {count: frozenset().union(*(part[count] for part in limiting)) for count in common}


def _are_alike(nodes: Sequence[Any]) -> bool:
    """True if these can be samples of one dataset: of the same kinds in the same places."""
    first = nodes[0] if nodes else None
    if isinstance(first, torch.Tensor | np.ndarray):
        kinds = {
            (type(each), getattr(each, "dtype", None), getattr(each, "ndim", None))
            for each in nodes
        }
        return len(kinds) == 1
    if isinstance(first, Mapping):
        return all(isinstance(each, Mapping) for each in nodes) and _are_dicts_alike(nodes)
    if _is_list(first):
        return all(map(_is_list, nodes)) and _are_lists_alike(nodes)
    return not _is_nested(nodes)


def _are_dicts_alike(dicts: Sequence[Mapping[Any, Any]]) -> bool:
    # A sample may lack a key, or have none.
    common = set(dicts[0]).intersection(*dicts)
    return bool(common or not all(dicts)) and all(
        _are_alike([each[key] for each in dicts]) for key in common
    )


def _are_lists_alike(lists: Sequence[Sequence[Any]]) -> bool:
    # The same places of tuples are compared, but all entries of lists of several lengths.
    if len(set(map(len, lists))) == 1:
        return all(map(_are_alike, zip(*lists, strict=True)))
    return _are_alike([each for entries in lists for each in entries])


def _has_leaf(node: Any) -> bool:
    """False for a list or dict without anything in it."""
    if isinstance(node, Mapping):
        return any(map(_has_leaf, node.values()))
    return any(map(_has_leaf, node)) if _is_list(node) else True


def _is_list(node: Any) -> bool:
    return isinstance(node, tuple | list)


def _is_nested(entries: Iterable[Any]) -> bool:
    """True if some of these are tensors, lists or dicts; texts and numbers form a column."""
    trees = tuple | list | Mapping | torch.Tensor | np.ndarray
    return any(isinstance(each, trees) for each in entries)
