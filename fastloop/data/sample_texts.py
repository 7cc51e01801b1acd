"""Texts in the samples of a store: stored as bytes, or left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, Tree

TEXTS_ALLOWED = 'strings="keep" stores texts, strings="leave_out" drops them'


def convert_texts(sample: Tree, strings: str | None, is_first: bool) -> Tree:
    """The sample with its texts as uint8 tensors, or without them.

    strings: the setting of `write_store`. Raises BadData, naming the leaf, for a text in the first
    sample if it is None.
    """
    if strings == "leave_out":
        return _without_texts(sample)
    if strings == "keep":
        return pytree.tree_map(_encode_text, sample)
    # Texts are searched for in the first sample only, because a search in each would take time.
    for path, leaf in pytree.tree_flatten_with_path(sample)[0] if is_first else ():
        if isinstance(leaf, str):
            raise BadData(f"sample{pytree.keystr(path)} is a text: {TEXTS_ALLOWED}")
    return sample


def find_texts(sample: Tree) -> list[bool]:
    """True for each leaf of the sample that is a text."""
    return [isinstance(leaf, str) for leaf in pytree.tree_leaves(sample)]


def _encode_text(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    return torch.from_numpy(np.frombuffer(leaf.encode(), np.uint8).copy())


def _without_texts(sample: Tree) -> Tree:
    if isinstance(sample, dict):
        return {key: _without_texts(value) for key, value in _others(sample.items())}
    if type(sample) in (list, tuple):
        return type(sample)(_without_texts(value) for _, value in _others(enumerate(sample)))
    return sample


def _others(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    return ((key, value) for key, value in items if not isinstance(value, str))
