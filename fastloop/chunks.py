"""All samples of a dataset in order, chunk by chunk: what preparing reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import optree
import torch
from torch.utils.data import default_collate

from fastloop.protocols import Samples
from fastloop.ragged import Joined, joined
from fastloop.torch_loader import in_order
from fastloop.types import BadData, SamplesDiffer, Tree

PYTHONS = {bool: "bool", int: "int64", float: "float64"}
"""What default_collate makes of Python's numbers."""


@dataclass(frozen=True)
class Chunk:
    """Samples that follow each other."""

    batch: Tree
    """Of those that could be decoded, by torch's default_collate, or Joined where they differ in
    length; None where there are none."""
    broken: list[tuple[int, str]]
    """Index and reason of the others."""
    size: int


@dataclass(frozen=True)
class Numbered:
    """(index, sample, why it can't be decoded); what else is raised names the index."""

    samples: Samples
    tolerant: bool

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[int, Tree, str]:
        try:
            return index, self.samples[index], ""
        except BadData as why:
            if not self.tolerant:
                raise
            return index, None, str(why)
        except Exception as error:
            said = (str(error).splitlines() or [""])[0]
            raise BadData(f"sample {index}: {type(error).__name__}: {said}") from error


def collated_chunks(
    samples: Samples, chunk: int, num_workers: int, tolerant: bool = False, ragged: bool = False
) -> Iterator[Chunk]:
    """All samples in order, `chunk` to a batch; raises SamplesDiffer where they do.

    ragged: the first dimension of a leaf may differ.
    With workers the decoding runs in that many processes; what is in flight stays bounded.
    """
    collate = partial(collated, ragged=ragged)
    yield from in_order(Numbered(samples, tolerant), chunk, collate, num_workers)


def collated(numbered: list[tuple[int, Tree, str]], ragged: bool) -> Chunk:
    """These (index, sample, why it can't be decoded) as a chunk; raises SamplesDiffer where they
    do, BadData where they are no batch."""
    whole = [(index, sample) for index, sample, why in numbered if not why]
    broken = [(index, why) for index, _, why in numbered if why]
    collate = joined if ragged else default_collate
    try:
        batch = collate([sample for _, sample in whole]) if whole else None
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        if differ := _how_they_differ(whole, _shown, ragged):
            raise SamplesDiffer(differ) from error
        raise BadData(f"samples can't be collated: {error}") from error
    # default_collate leaves out a key that the first sample lacks, and converts another dtype
    if differ := _how_they_differ(whole, _kind, ragged):
        raise SamplesDiffer(differ)
    _check_leaves(batch)
    return Chunk(batch, broken, len(numbered))


def _check_leaves(batch: Tree) -> None:
    leaves = [] if batch is None else optree.tree_leaves(batch)
    others = {type(leaf).__name__ for leaf in leaves if not isinstance(leaf, torch.Tensor | Joined)}
    if others:
        told = f"samples hold {', '.join(sorted(others))}"
        raise BadData(f"{told}; tensors, arrays and numbers can be compared, leave out the others")


def _how_they_differ(
    whole: list[tuple[int, Tree]], seen_as: Callable[[Tree, bool], Any], ragged: bool
) -> str:
    """The first two that are not the same, seen that way; empty where all are."""
    if not whole:
        return ""
    (first, sample), *others = whole
    wanted = seen_as(sample, ragged)
    for index, other in others:
        if seen_as(other, ragged) != wanted:
            told = f"{first} is {_shown(sample, ragged)}, {index} is {_shown(other, ragged)}"
            return f"samples differ: {told}"
    return ""


def _kind(sample: Tree, ragged: bool) -> tuple[Any, list[Any]]:
    """The tree, and what a batch has of each leaf: Python's int and numpy's int64 are the same."""
    leaves, structure = optree.tree_flatten(sample)
    return structure, [(_dtype(leaf), _sizes(leaf, ragged)) for leaf in leaves]


def _shown(sample: Tree, ragged: bool) -> str:
    return str(optree.tree_map(partial(_leaf, ragged=ragged), sample)).replace("'", "")


def _leaf(leaf: Any, ragged: bool) -> str:
    if not hasattr(leaf, "dtype"):
        return type(leaf).__name__
    return f"{_dtype(leaf)}[{', '.join(map(str, _sizes(leaf, ragged)))}]"


def _dtype(leaf: Any) -> str:
    if hasattr(leaf, "dtype"):
        return str(leaf.dtype).removeprefix("torch.")
    return PYTHONS.get(type(leaf), type(leaf).__name__)


def _sizes(leaf: Any, ragged: bool) -> tuple[Any, ...]:
    shape: Any = getattr(leaf, "shape", ())
    sizes: tuple[Any, ...] = tuple(shape)
    return ("*", *sizes[1:]) if ragged and sizes else sizes
