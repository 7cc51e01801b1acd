"""DatasetWatch, which checks whether a dataset has been changed since a loader opened it.

A program may change a dataset between two epochs, and DataLoader then delivers the changed samples.
A Dataset that is read through its own `__getitem__` needs no watch. A dataset that is read natively
was asked only once for its memory or its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import TensorDataset

from fastloop.fastloader.column_source import ColumnSource


@runtime_checkable
class DatasetColumn(Protocol):
    """A column that was made of a dataset, which a program may change."""

    def is_current(self) -> bool:
        """True if the dataset still has the data that the column was made of."""
        ...


@dataclass(frozen=True, eq=False)
class DatasetWatch:
    """A dataset, and the facts about it when a loader opened it."""

    dataset: Any
    columns: Sequence[DatasetColumn]
    facts: tuple[Any, ...]
    """The facts of the dataset, see `_read_facts`."""
    kept: Sequence[Any]
    """Objects that are kept, so that no other one gets their address."""

    def __len__(self) -> int:
        """Return the number of samples that the dataset has now."""
        return len(self.dataset)

    def is_current(self) -> bool:
        """True if the dataset is as it was. It costs microseconds, and for an image folder a
        comparison of its lists."""
        # The tensors are asked before the columns, as these may take longer.
        is_same = _read_facts(self.dataset)[0] == self.facts
        return is_same and all(column.is_current() for column in self.columns)


def watch_dataset(dataset: Any, opened: Any) -> DatasetWatch | None:
    """The watch of a dataset that was opened as columns; None for other sources, which are asked
    for each sample, or for trees, which belong to the loader."""
    if not isinstance(opened, ColumnSource):
        return None
    columns = [column for column in opened.columns if isinstance(column, DatasetColumn)]
    facts, kept = _read_facts(dataset)
    return DatasetWatch(dataset, columns, facts, kept) if columns or facts else None


def _read_facts(dataset: Any) -> tuple[tuple[Any, ...], list[Any]]:
    """Facts that differ once a TensorDataset, or a Hugging Face dataset, has been changed; and the
    objects that have the addresses among these facts."""
    if type(dataset) is TensorDataset:
        tensors = [each for each in dataset.tensors if isinstance(each, torch.Tensor)]
        others = [type(each) for each in dataset.tensors if not isinstance(each, torch.Tensor)]
        facts = (*map(_describe_tensor, tensors), *others)
        # detach() keeps the memory even if the program assigns to .data.
        return facts, [tensor.detach() for tensor in tensors]
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "_indices"):
        table = dataset.data
        return (id(table), dataset._indices is None, repr(dataset.format)), [table]
    return (), []


def _describe_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The place and the form of a tensor's values."""
    form = tensor.dtype, tensor.shape, tensor.layout, tensor.device, tensor.requires_grad
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return form
    is_lazy = tensor.is_conj() or tensor.is_neg()
    # Values that are not contiguous were copied: a change in place does not reach the copy.
    is_copied = (is_lazy or not tensor.is_contiguous()) and not tensor.is_inference()
    version = tensor._version if is_copied else None
    return form, tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg(), version
