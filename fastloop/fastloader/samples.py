"""A source that has samples only: torch's map-style Datasets, whose batches are collated."""

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

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Column, Tree
from fastloop.fastloader.indices import Block
from fastloop.fastloader.source import Source, source_of

CollateFn = Callable[[Any], Tree]


class Batches(Protocol):
    """What the loader makes batches of."""

    @property
    def together(self) -> bool:
        """True where making several batches at once is cheaper."""
        ...

    @property
    def row_nbytes(self) -> Sequence[int]:
        """Bytes of a sample in each buffer that a block takes."""
        ...

    def __len__(self) -> int: ...

    def batches(self, block: Block, pool: Pool) -> Sequence[Tree]:
        """Those of a block. Several threads call it at once."""
        ...


@dataclass(frozen=True)
class Samples:
    """A map-style dataset, read a sample at a time, or a batch where it has `__getitems__`.

    That is done in the loader's threads, which is right where reading gives the interpreter's lock
    back, as files, decoders and large numpy operations do.
    """

    dataset: Any
    collate_fn: CollateFn
    alone: bool
    """True: each sample by itself instead of batches."""

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def together(self) -> bool:
        """Nothing is gained, and the first of them would come as late as the last."""
        return False

    @property
    def row_nbytes(self) -> Sequence[int]:
        """No buffer is taken."""
        return ()

    def batches(self, block: Block, pool: Pool) -> Sequence[Tree]:  # noqa: ARG002
        """What collate_fn makes of them: its memory is its own."""
        ends = np.cumsum(block.split())[:-1]
        return [self._batch(one.tolist()) for one in np.split(block.indices, ends)]

    def _batch(self, indices: list[int]) -> Tree:
        if self.alone:
            return self.collate_fn(self.dataset[indices[0]])
        at_once = getattr(self.dataset, "__getitems__", None)
        return self.collate_fn(
            at_once(indices) if at_once else [self.dataset[index] for index in indices]
        )


@dataclass(frozen=True)
class Singly:
    """The samples of columns, each by itself."""

    source: Batches

    def __len__(self) -> int:
        return len(self.source)

    @property
    def together(self) -> bool:
        """As batches."""
        return self.source.together

    @property
    def row_nbytes(self) -> Sequence[int]:
        """As those of the batches."""
        return self.source.row_nbytes

    def batches(self, block: Block, pool: Pool) -> Sequence[Tree]:
        """Without the first dimension."""
        found = self.source.batches(block, pool)
        return [pytree.tree_map(lambda leaf: leaf[0], batch) for batch in found]


@dataclass(frozen=True)
class Sampled(Dataset):
    """The samples of columns by index, for whoever asks for a DataLoader's `dataset`."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tree:
        """Raises IndexError for one that is not there."""
        indices = np.array([range(len(self))[index]])
        return Singly(self.source).batches(Block(indices, 1), Pool(self.source.row_nbytes))[0]


def dataset_of(source: Any) -> Dataset:
    """The map-style dataset that it is, or one of a tree's samples."""
    is_one = isinstance(source, TensorDataset) or _is_dataset(source)
    return source if is_one else Sampled(source_of(source))


def opened(source: Any, collate_fn: CollateFn | None, alone: bool) -> Batches:
    """A tree of columns, or a map-style dataset, as batches; alone: as single samples.

    A TensorDataset is its tensors, and its batches lists, as default_collate makes them. Raises
    ValueError for what is neither, and for a collate_fn where there are no samples to collate.
    """
    if type(source) is TensorDataset and collate_fn is None:
        source = list(source.tensors)
    if _is_dataset(source):
        default = default_convert if alone else default_collate
        return Samples(source, collate_fn or default, alone)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = source_of(source)
    return Singly(columns) if alone else columns


def _is_dataset(source: Any) -> bool:
    if isinstance(source, IterableDataset):
        told = "it has no indices; fastloop.write_store makes a store of it"
        raise ValueError(f"a source has samples by index, got {type(source).__name__}: {told}")
    if isinstance(source, torch.Tensor | np.ndarray | Column | str | bytes):
        return False
    is_leaf = pytree.tree_structure(source).is_leaf()
    return is_leaf and hasattr(source, "__getitem__") and hasattr(source, "__len__")
