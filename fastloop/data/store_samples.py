"""The samples that write_store stores: with their texts as bytes, or without their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset

from fastloop.core.types import BadData, Tree

ALLOWED = 'strings="keep" stores texts, strings="leave_out" drops them'


@dataclass(frozen=True)
class StoreSamples:
    """The samples of a map-style dataset."""

    samples: Any
    strings: str | None

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Tree:
        return prepare_sample(self.samples[index], self.strings, index == 0)

    @property
    def texts(self) -> list[bool]:
        """True for each leaf of a sample that is a text."""
        keeps = self.strings == "keep" and len(self) > 0
        return _find_texts(self.samples[0]) if keeps else []


@dataclass
class StoreStream(IterableDataset):
    """The samples of an iterable."""

    samples: Iterable[Any]
    strings: str | None
    texts: list[bool] = field(default_factory=list)
    """True for each leaf of a sample that is a text; empty until the first sample has been read."""

    def __iter__(self) -> Iterator[Tree]:
        for number, sample in enumerate(self.samples):
            if not number and self.strings == "keep":
                self.texts = _find_texts(sample)
            yield prepare_sample(sample, self.strings, number == 0)


def prepare_sample(sample: Tree, strings: str | None, is_first: bool) -> Tree:
    """The sample with its texts as uint8 tensors, or without them.

    Raises BadData, naming the leaf, for a text in the first sample if `strings` is None.
    """
    if strings == "leave_out":
        return _without_texts(sample)
    if strings == "keep":
        return pytree.tree_map(_encode_text, sample)
    # only in the first sample, as the search would take time for each
    for path, leaf in pytree.tree_flatten_with_path(sample)[0] if is_first else ():
        if isinstance(leaf, str):
            raise BadData(f"sample{pytree.keystr(path)} is a text: {ALLOWED}")
    return sample


def _encode_text(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    return torch.from_numpy(np.frombuffer(leaf.encode(), np.uint8).copy())


def _find_texts(sample: Tree) -> list[bool]:
    return [isinstance(leaf, str) for leaf in pytree.tree_leaves(sample)]


def _without_texts(sample: Tree) -> Tree:
    if isinstance(sample, dict):
        return {key: _without_texts(value) for key, value in _others(sample.items())}
    if type(sample) in (list, tuple):
        return type(sample)(_without_texts(value) for _, value in _others(enumerate(sample)))
    return sample


def _others(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    return ((key, value) for key, value in items if not isinstance(value, str))
