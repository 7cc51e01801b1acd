"""All samples of a dataset in order, chunk by chunk: what preparing reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import optree
import torch
from torch.utils.data import default_collate

from fastloop.ragged import joined
from fastloop.torch_loader import in_order
from fastloop.types import BadData, Samples, Tree


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
    """All samples in order, `chunk` to a batch; raises BadData where they differ in shape.

    ragged: the first dimension of a leaf may differ.
    With workers the decoding runs in that many processes; what is in flight stays bounded.
    """
    collate = partial(_collated, ragged=ragged)
    yield from in_order(Numbered(samples, tolerant), chunk, collate, num_workers)


def _collated(numbered: list[tuple[int, Tree, str]], ragged: bool) -> Chunk:
    whole = [(index, sample) for index, sample, why in numbered if not why]
    broken = [(index, why) for index, _, why in numbered if why]
    collate = joined if ragged else default_collate
    try:
        batch = collate([sample for _, sample in whole]) if whole else None
    except (RuntimeError, TypeError, KeyError, ValueError) as error:
        said = _how_they_differ(whole, ragged) or f"samples can't be collated: {error}"
        raise BadData(said) from error
    return Chunk(batch, broken, len(numbered))


def _how_they_differ(whole: list[tuple[int, Tree]], ragged: bool) -> str:
    first, *others = [(index, _shown(sample, ragged)) for index, sample in whole]
    for index, shown in others:
        if shown != first[1]:
            return f"samples differ: {first[0]} is {first[1]}, {index} is {shown}"
    return ""


def _shown(sample: Tree, ragged: bool) -> str:
    return str(optree.tree_map(partial(_leaf, ragged=ragged), sample)).replace("'", "")


def _leaf(leaf: Any, ragged: bool) -> str:
    sizes = [str(size) for size in getattr(leaf, "shape", ())]
    if ragged and sizes:
        sizes[0] = "*"
    shape = f"[{', '.join(sizes)}]"
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{shape}"
    return type(leaf).__name__ + (shape if sizes else "")
