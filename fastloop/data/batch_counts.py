"""Numbers of samples of batches of texts and lists, and of batches padded to several widths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fastloop.core.types import Invalid, Tree, UnclearCount


def count_epoch(batches: Iterable[Tree], at_most: int | None = None) -> int:
    """Number of samples of an epoch.

    Raises UnclearCount as `count_samples` does, and Invalid as soon as there are more than
    `at_most`.
    """
    count = 0
    for batch in batches:
        count += count_samples(batch)
        if at_most is not None and count > at_most:
            raise Invalid(f"it yields more than {at_most:,} samples an epoch")
    return count


def count_samples(batch: Tree) -> int:
    """Number of samples of a batch of tensors, texts and lists; raises UnclearCount for no batch.

    >>> count_samples({"text": ["a", "b"], "label": torch.tensor([0, 1])})
    2
    """
    # A collate that returns its list of samples leaves tuples or dicts in it; one that returns
    # columns, as tuple(zip(*samples)) or default_collate do, has none in a list.
    if type(batch) is list and batch and all(isinstance(each, tuple | dict) for each in batch):
        return len(batch)
    lengths = _lengths_of_columns(batch)
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "none"
        raise UnclearCount(f"a batch is columns of one length, not of these lengths: {found}")
    return lengths.pop()


def _lengths_of_columns(node: Any) -> set[int]:
    """The lengths of the columns in a batch: tensors, and lists of what each sample has."""
    if isinstance(node, torch.Tensor):
        return {len(node)} if node.ndim else {1}
    if isinstance(node, Mapping):
        return set[int]().union(*map(_lengths_of_columns, node.values()))
    if not isinstance(node, tuple | list):
        return set()
    # A list of columns has a tensor or a list for each; in a column each entry is of one sample.
    lengths = set[int]()
    for column in node:
        is_list = isinstance(column, tuple | list)
        lengths |= {len(column)} if is_list else _lengths_of_columns(column)
    return lengths
