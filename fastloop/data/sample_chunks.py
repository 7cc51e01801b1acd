"""Collate consecutive samples of a dataset to a `Chunk`, and say in words how samples differ that
can't be collated.

Samples that differ in tree, dtype or shape are errors; in a ragged dataset, the first dimension of
a leaf may differ. A job's own collate is applied to each sample by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import optree
import torch
from torch.utils.data import default_collate

from fastloop.core.trees import tree_leaves
from fastloop.core.types import (
    BadData,
    Invalid,
    Leaves,
    LengthsDiffer,
    SamplesDiffer,
    Tree,
    UnusableLeaves,
)
from fastloop.core.user_code import error_line
from fastloop.data.dataset_samples import is_broken
from fastloop.data.digest import leaves_of
from fastloop.data.ragged import (
    LISTS_OF_NUMBERS,
    RaggedTensor,
    collate_ragged,
    difference_error,
)

PYTHON_DTYPES = {bool: "bool", int: "int64", float: "float64"}
"""dtypes to which default_collate converts Python's numbers."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples, collated to one batch."""

    batch: Tree
    """The decoded samples, collated by torch's default_collate, or with RaggedTensor leaves if
    samples differ in length; None if no sample could be decoded."""
    broken: list[tuple[int, str]]
    """Index and reason of each sample that could not be decoded."""
    size: int
    """Number of samples, including those that could not be decoded."""


def collate_chunk(
    items: list[tuple[int, Tree, str]], ragged: bool, tolerant: bool = False
) -> Chunk:
    """Collate (index, sample, error) items into a chunk.

    Raises SamplesDiffer if samples differ, and BadData if they can't be collated. A sample that is
    None or, without `ragged`, holds a None raises BadData, too, unless `tolerant`.
    """
    # Without `ragged`, a None inside of a sample can't be collated, so the sample is broken.
    missing = {
        index: _missing(index, error)
        for index, sample, error in items
        if sample is None or (not ragged and is_broken(sample))
    }
    if missing and not tolerant:
        remedy = "a measurement leaves it out with collate=skip_broken or a collate of your own"
        raise BadData(f"{next(iter(missing.values()))}; {remedy}")
    decoded = [(index, sample) for index, sample, _ in items if index not in missing]
    broken = list(missing.items())
    collate = collate_ragged if ragged else default_collate
    try:
        batch = collate([sample for _, sample in decoded]) if decoded else None
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        if difference := _describe_difference(decoded, _describe, ragged):
            raise _difference_error(difference, decoded, ragged) from error
        # default_collate raises a TypeError for leaves of another kind, such as images of Pillow.
        kind = UnusableLeaves if isinstance(error, TypeError) else BadData
        raise kind(f"samples can't be collated: {error}") from error
    # default_collate succeeds for some samples that differ: it drops keys that the first sample
    # lacks, and converts dtypes.
    if difference := _describe_difference(decoded, _signature, ragged):
        raise SamplesDiffer(difference)
    _check_leaves(batch)
    return Chunk(batch, broken, len(items))


def collate_each(items: list[tuple[int, Any, str]], collate: Callable[[Any], Tree]) -> Chunk:
    """Collate each of (index, fetched, error) items by itself.

    fetched: the argument that a DataLoader passes to `collate` for that index alone. A sample is
    broken if `collate` leaves it out. Raises BadData if samples differ, if `collate` fails for a
    sample that is not None, and if it returns anything but a batch of one sample.
    """
    batches = {index: _batch_of_one(index, fetched, collate) for index, fetched, _ in items}
    whole = [(index, batch) for index, batch in batches.items() if batch is not None]
    broken = [
        (index, _missing(index, error))
        if is_broken(fetched)
        else (index, f"sample {index}: the collate leaves it out")
        for index, fetched, error in items
        if batches[index] is None
    ]
    return Chunk(_concatenate(whole) if whole else None, broken, len(items))


def _batch_of_one(index: int, fetched: Any, collate: Callable[[Any], Tree]) -> Tree | None:
    """The batch that `collate` makes of one sample; None if it leaves the sample out."""
    try:
        batch = collate(fetched)
    # A user's function may raise anything. If it removes a broken sample and calls default_collate
    # with the empty list that is left, default_collate raises; that is not a fault of the function.
    except Exception as error:
        if is_broken(fetched):
            return None
        raise BadData(f"sample {index}: the collate fails: {error_line(error)}") from error
    if is_broken(batch):
        return None
    try:
        leaves_of(batch)
    except Invalid as error:
        hint = "fastloop.bench measures loaders with other batches"
        text = f"sample {index}: the collate makes no batch: {error}; {hint}"
        raise BadData(text) from error
    count = len(tree_leaves(batch)[0])
    if count > 1:
        raise BadData(f"sample {index}: the collate makes a batch of {count} samples of it")
    return batch if count else None


def _concatenate(batches: list[tuple[int, Tree]]) -> Tree:
    """The batches as one; raises BadData if their trees, dtypes or shapes differ."""
    (first, batch), *others = batches
    kind = optree.tree_structure(batch), leaves_of(batch)
    for index, other in others:
        if (optree.tree_structure(other), leaves_of(other)) != kind:
            pair = f"{first} is {kind[1]}, {index} is {leaves_of(other)}"
            hint = "each sample is compared by itself, so pad all to one length, or use "
            hint += "collate=pad, which keeps their lengths; "
            hint += "fastloop.bench measures your loader as it is"
            raise BadData(f"samples differ once collated: {pair}; {hint}")
    columns = zip(*(tree_leaves(each) for _, each in batches), strict=True)
    joined = [torch.cat(column) for column in columns]
    # tree_leaves also opens containers that are leaves to optree, such as dataclasses, and optree
    # can't put their parts back. The gate needs only the leaves, in this order.
    return kind[0].unflatten(joined) if kind[0].num_leaves == len(joined) else joined


def _missing(index: int, error: str) -> str:
    return error or f"sample {index} is None, or holds a None"


def _check_leaves(batch: Tree) -> None:
    leaves = [] if batch is None else optree.tree_leaves(batch)
    others = {
        type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor | RaggedTensor)
    }
    if others:
        names = ", ".join(sorted(others))
        raise UnusableLeaves(
            f"samples hold {names}; only tensors, arrays and numbers are supported"
        )


def _difference_error(message: str, samples: list[tuple[int, Tree]], ragged: bool) -> SamplesDiffer:
    """The error for samples that differ, with a hint if they hold lists of numbers."""
    kinds = [_signature(sample, ragged=False) for _, sample in samples]
    # Samples that are padded anyway differ in more than their lengths.
    error = SamplesDiffer(message) if ragged else difference_error(message, kinds)
    holds_lists = any(f"[{kind}, {kind}" in message for kind in ("int", "float"))
    if isinstance(error, LengthsDiffer) or not holds_lists:
        return error
    return SamplesDiffer(f"{message}; {LISTS_OF_NUMBERS}")


def _describe_difference(
    samples: list[tuple[int, Tree]], key: Callable[[Tree, bool], Any], ragged: bool
) -> str:
    """The first two samples with different keys, in words; empty if all keys are equal."""
    if not samples:
        return ""
    (first, sample), *others = samples
    expected = key(sample, ragged)
    for index, other in others:
        if key(other, ragged) != expected:
            pair = f"{first} is {_describe(sample, ragged)}, {index} is {_describe(other, ragged)}"
            return f"samples differ: {pair}"
    return ""


def _signature(sample: Tree, ragged: bool) -> tuple[Any, Leaves]:
    """The tree, and the dtype and shape that each leaf has in a batch: int and int64 are equal."""
    leaves, structure = optree.tree_flatten(sample)
    return structure, tuple((_dtype(leaf), _sizes(leaf, ragged)) for leaf in leaves)


def _describe(sample: Tree, ragged: bool) -> str:
    return str(optree.tree_map(partial(_describe_leaf, ragged=ragged), sample)).replace("'", "")


def _describe_leaf(leaf: Any, ragged: bool) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{_dtype(leaf)}[{', '.join(map(str, _sizes(leaf, ragged)))}]"


def _dtype(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return str(leaf.dtype).removeprefix("torch.")
    return PYTHON_DTYPES.get(type(leaf), type(leaf).__name__)


def _sizes(leaf: Any, ragged: bool) -> tuple[Any, ...]:
    shape: Any = getattr(leaf, "shape", ())
    sizes: tuple[Any, ...] = tuple(shape)
    return ("*", *sizes[1:]) if ragged and sizes else sizes
