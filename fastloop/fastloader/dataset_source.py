"""Sources whose samples are read one by one, as torch's map-style Datasets, and then collated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.columns.column import Column, Tree
from fastloop.fastloader.source import ColumnSource, column_source

CollateFn = Callable[[Any], Tree]


class BatchSource(Protocol):
    """A source of batches by index."""

    @property
    def is_groupable(self) -> bool:
        """True where making several batches at once is cheaper."""
        ...

    @property
    def row_nbytes(self) -> Sequence[int]:
        """Bytes of a sample in each of the buffers that a group takes."""
        ...

    def __len__(self) -> int: ...

    def batches(self, group: BatchGroup, pool: BufferPool) -> Sequence[Tree]:
        """The group's batches. Several threads call this concurrently."""
        ...


@dataclass(frozen=True)
class DatasetSource:
    """A map-style dataset, read by sample, or by batch where it has `__getitems__`.

    The loader's threads read it, which pays where reading releases the GIL, as files, decoders and
    large numpy operations do.
    """

    dataset: Any
    collate_fn: CollateFn
    is_unbatched: bool
    """True: each sample by itself instead of batches."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def is_groupable(self) -> bool:
        """Always False: a group would save nothing, and delay its first batch."""
        return False

    @property
    def row_nbytes(self) -> Sequence[int]:
        """Empty: no buffer is taken."""
        return ()

    def batches(self, group: BatchGroup, pool: BufferPool) -> Sequence[Tree]:  # noqa: ARG002
        """The results of collate_fn, which are not in the pool's memory."""
        stops = np.cumsum(group.batch_sizes())[:-1]
        return [self._batch(indices.tolist()) for indices in np.split(group.indices, stops)]

    def _batch(self, indices: list[int]) -> Tree:
        if self.is_unbatched:
            return self.collate_fn(self.dataset[indices[0]])
        getitems = getattr(self.dataset, "__getitems__", None)
        return self.collate_fn(
            getitems(indices) if getitems else [self.dataset[index] for index in indices]
        )


@dataclass(frozen=True)
class UnbatchedSource:
    """The samples of a source, one by one, without a batch dimension."""

    source: BatchSource

    def __len__(self) -> int:
        return len(self.source)

    @property
    def is_groupable(self) -> bool:
        """As the source."""
        return self.source.is_groupable

    @property
    def row_nbytes(self) -> Sequence[int]:
        """As the source's."""
        return self.source.row_nbytes

    def batches(self, group: BatchGroup, pool: BufferPool) -> Sequence[Tree]:
        """The group's samples; its batches are of size 1."""
        batches = self.source.batches(group, pool)
        return [pytree.tree_map(lambda leaf: leaf[0], batch) for batch in batches]


@dataclass(frozen=True)
class ColumnDataset(Dataset):
    """The samples of columns by index, as DataLoader's attribute `dataset` gives them."""

    source: ColumnSource

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tree:
        """Return a sample; raises IndexError for an index out of bounds."""
        group = BatchGroup(np.array([range(len(self))[index]]), 1)
        pool = BufferPool(self.source.row_nbytes)
        return UnbatchedSource(self.source).batches(group, pool)[0]


def as_dataset(source: Any) -> Dataset:
    """The source itself where it is a map-style dataset, else a dataset of the tree's samples."""
    is_dataset = isinstance(source, TensorDataset) or _is_dataset(source)
    return source if is_dataset else ColumnDataset(column_source(source))


def open_source(source: Any, collate_fn: CollateFn | None, is_unbatched: bool) -> BatchSource:
    """A source of batches, or of single samples, of a tree of columns or a map-style dataset.

    A TensorDataset is treated as its tensors, in batches that are lists, as default_collate makes
    them. Raises ValueError for anything else, and for a collate_fn where nothing is collated.
    """
    if type(source) is TensorDataset and collate_fn is None:
        source = list(source.tensors)
    if _is_dataset(source):
        default = default_convert if is_unbatched else default_collate
        return DatasetSource(source, collate_fn or default, is_unbatched)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = column_source(source)
    return UnbatchedSource(columns) if is_unbatched else columns


def _is_dataset(source: Any) -> bool:
    if isinstance(source, IterableDataset):
        reason = "it has no indices; fastloop.write_store makes a store of it"
        raise ValueError(f"a source has samples by index, got {type(source).__name__}: {reason}")
    if isinstance(source, torch.Tensor | np.ndarray | Column | str | bytes):
        return False
    is_leaf = pytree.tree_structure(source).is_leaf()
    return is_leaf and hasattr(source, "__getitem__") and hasattr(source, "__len__")
