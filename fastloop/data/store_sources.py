"""The sources of `write_store`: trees of arrays, datasets with indices, and streams of samples.
Texts in samples are stored as bytes, or left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset, TensorDataset

from fastloop.core.types import BadData, Tree, Unsupported
from fastloop.core.user_code import is_iterable
from fastloop.data.chunked_reader import MOST_ROWS, collate_chunks, rows_per_chunk
from fastloop.data.sample_chunks import collate_chunk
from fastloop.fastloader.columns.column import ColumnList

TEXTS_ALLOWED = 'strings="keep" stores texts, strings="leave_out" drops them'
LEFT_OUT = 'strings="leave_out" drops those in dicts, lists and tuples'
"""The ends of messages about a text in a sample: without `strings`, and with "leave_out"."""


@dataclass(frozen=True)
class TreeSource:
    """A tree of tensors and arrays of one length."""

    tree: Tree
    count: int
    """Number of samples."""
    may_differ: ClassVar[bool] = False
    """True if leaves may differ in length between samples."""

    def chunks(self) -> Iterator[Tree]:
        """Yield all rows in batches of about 2 MiB."""
        size = rows_per_chunk(self.read(slice(1)))
        return (self.read(slice(start, start + size)) for start in range(0, self.count, size))

    def read(self, indices: slice | list[int]) -> Tree:
        """The rows of these indices as a batch."""
        return pytree.tree_map(lambda leaf: torch.as_tensor(leaf[indices]), self.tree)


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """A map-style dataset; its items are the samples as they are stored."""

    dataset: Any
    strings: str | None
    """The setting of `write_store`."""
    may_differ: bool
    """True if leaves may differ in length between samples."""
    num_workers: int
    """Number of processes that read the dataset; 0: this one."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Tree:
        return _convert_texts(self.dataset[index], self.strings, index == 0)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self)

    @property
    def texts(self) -> list[bool]:
        """True for each leaf of a sample that is a text."""
        keeps = self.strings == "keep" and len(self) > 0
        return _find_texts(self.dataset[0]) if keeps else []

    def chunks(self) -> Iterator[Tree]:
        """Yield all samples in batches of about 2 MiB."""
        if len(self):
            size = rows_per_chunk(self.read([0]))
            chunks = collate_chunks(self, size, self.num_workers, ragged=self.may_differ)
            yield from (chunk.batch for chunk in chunks)

    def read(self, indices: list[int]) -> Tree:
        """The samples of these indices as a batch."""
        return _collate([(index, self[index]) for index in indices], self.may_differ)


@dataclass(kw_only=True)
class StreamSource:
    """An iterable of samples, which can be read only once."""

    samples: Iterable[Any]
    strings: str | None
    """The setting of `write_store`."""
    may_differ: bool
    """True if leaves may differ in length between samples."""
    texts: list[bool] = field(default_factory=list)
    """True for each leaf of a sample that is a text; empty until the first sample has been read."""
    count: ClassVar[None] = None
    """The number of samples is not known."""

    def chunks(self) -> Iterator[Tree]:
        """Yield all samples in batches of about 2 MiB."""
        # The size of a sample is known only once it has been read. Ragged samples may grow, so the
        # size of each chunk follows from its first sample, but it never exceeds that of the chunk
        # before.
        numbered = enumerate(self._convert_samples())
        size = MOST_ROWS
        for first in numbered:
            size = min(size, rows_per_chunk(_collate([first], self.may_differ)))
            yield _collate([first, *islice(numbered, size - 1)], self.may_differ)

    def _convert_samples(self) -> Iterator[Tree]:
        """Yield the samples as they are stored."""
        for number, sample in enumerate(self.samples):
            if not number and self.strings == "keep":
                self.texts = _find_texts(sample)
            yield _convert_texts(sample, self.strings, number == 0)


StoreSource = TreeSource | SampleSource | StreamSource


def open_source(
    dataset: Any, strings: str | None, *, may_differ: bool, num_workers: int
) -> StoreSource:
    """The source that reads this dataset for `write_store`.

    Raises ValueError for a dataset of another kind, and for a tree with leaves of several lengths
    or without a dimension; Unsupported for a tree with arrays that no tensor can hold, such as
    texts.
    """
    tree = _columns_of(dataset)
    # A plain list may be a tree of tensors, too, but is taken for a list of samples.
    if type(dataset) is not list and _is_tree(tree):
        _check_leaves(tree)
        return TreeSource(tree, _length(tree))
    if not is_iterable(dataset) or tree is not dataset:
        allowed = "allowed: a Dataset, an iterable of samples, or a tree of tensors or arrays"
        raise ValueError(f"dataset={type(dataset).__name__}: {allowed}")
    # IterableDataset inherits a __getitem__ from Dataset, which only raises.
    has_indices = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, IterableDataset) or not has_indices:
        return StreamSource(samples=dataset, strings=strings, may_differ=may_differ)
    return SampleSource(
        dataset=dataset, strings=strings, may_differ=may_differ, num_workers=num_workers
    )


def _columns_of(dataset: Any) -> Any:
    """The tree of a list of columns, or of a TensorDataset; any other dataset as it is."""
    # A TensorDataset is written without reading sample by sample. A subclass may have another
    # __getitem__.
    if type(dataset) is TensorDataset:
        return list(dataset.tensors)
    return list(dataset) if type(dataset) is ColumnList else dataset


def _is_tree(dataset: Any) -> bool:
    leaves = pytree.tree_leaves(dataset)
    return bool(leaves) and all(isinstance(leaf, torch.Tensor | np.ndarray) for leaf in leaves)


def _check_leaves(tree: Tree) -> None:
    for number, leaf in enumerate(pytree.tree_leaves(tree)):
        if not leaf.ndim:
            name = _name_leaf(tree, number, "dataset")
            raise ValueError(f"{name} has no dimension; allowed: leaves with a row for each sample")
        if isinstance(leaf, np.ndarray):
            try:
                torch.as_tensor(np.empty(0, leaf.dtype))
            # ValueError: the bytes of its numbers are in another order than this machine's.
            except (TypeError, ValueError) as error:
                name = _name_leaf(tree, number, "dataset")
                allowed = "allowed: numbers and bools; samples of a Dataset may have texts"
                raise Unsupported(f"{name} is an array of {leaf.dtype}: {allowed}") from error


def _name_leaf(tree: Tree, number: int, root: str) -> str:
    """The place of a leaf for a message, such as `dataset['x']`."""
    try:
        path, _ = pytree.tree_flatten_with_path(tree)[0][number]
    # A type that was registered as a node need not have names for its parts.
    except ValueError:
        return f"leaf {number} of {root}"
    return f"{root}{pytree.keystr(path)}"


def _length(tree: Tree) -> int:
    lengths = {len(leaf) for leaf in pytree.tree_leaves(tree)}
    if len(lengths) != 1:
        shown = " and ".join(map(str, sorted(lengths)))
        raise ValueError(f"dataset: leaves of {shown} rows; allowed: leaves of one length")
    return lengths.pop()


def _collate(numbered: list[tuple[int, Tree]], may_differ: bool) -> Tree:
    """The batch of samples, each with its index, which a message names."""
    # Each item has its error as the third part; these samples have none.
    return collate_chunk([(*each, "") for each in numbered], may_differ).batch


def _convert_texts(sample: Tree, strings: str | None, is_first: bool) -> Tree:
    """The sample with its texts as uint8 tensors, or without them.

    strings: the setting of `write_store`. Raises BadData, naming the leaf, if the first sample
    still has a text.
    """
    if strings == "keep":
        return pytree.tree_map(_encode_text, sample)
    allowed = TEXTS_ALLOWED
    if strings == "leave_out":
        sample = _without_texts(sample)
        allowed = LEFT_OUT
    # Texts are searched for in the first sample only, because a search in each would take time.
    for number, leaf in enumerate(pytree.tree_leaves(sample) if is_first else ()):
        if isinstance(leaf, str):
            raise BadData(f"{_name_leaf(sample, number, 'sample')} is a text: {allowed}")
    return sample


def _find_texts(sample: Tree) -> list[bool]:
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
    """The pairs (key, value) in which the value is not a text."""
    return ((key, value) for key, value in items if not isinstance(value, str))
