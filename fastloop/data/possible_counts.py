"""Find the numbers of samples that a batch may have, from its columns or lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from fastloop.core.types import Tree

PartPath = tuple[Any, ...]
"""Keys and indices from a batch to a part of it."""
Counts = Mapping[int, frozenset[PartPath]]
"""A number of samples that a batch may have -> the parts of the batch from which it follows."""


def find_counts(batch: Tree) -> Counts:
    """The numbers of samples that a batch may have; empty if no number fits all of its parts.

    Each part of a batch allows some numbers of samples. A dict, list or tuple allows the numbers
    that all of its entries allow:

    =======================================  ======================================================
    part of a batch                          numbers of samples that the part allows
    =======================================  ======================================================
    tensor or array of shape (n, ...)        n
    tensor or array without dimensions       1
    PackedSequence                           n, the number of sequences in the first step
    text or number by itself                 any number
    list of n texts or numbers               n; also 1 if the list is the whole batch
    dict, named tuple                        the numbers that all values allow
    list of n tensors, lists or dicts        the numbers that all entries allow; also n if the
                                             entries are alike, because each may be a sample
    =======================================  ======================================================

    Here "x" allows 8 samples, and "split" any number. The result names the parts from which each
    number follows:

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
    """The numbers of samples that a part of a batch allows.

    path: the path of the part in the batch. None: the part allows any number, as a text does.
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
    if node and not is_nested(node):
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
    return not is_nested(nodes)


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


def is_nested(entries: Iterable[Any]) -> bool:
    """True if some of these are tensors, lists or dicts; texts and numbers form a column."""
    trees = tuple | list | Mapping | torch.Tensor | np.ndarray
    return any(isinstance(each, trees) for each in entries)
