"""DatasetWatch, which checks whether a dataset has been changed since a loader opened it.

A program may change a dataset between two epochs, and DataLoader then delivers the changed samples.
A Dataset that is read through its own `__getitem__` needs no watch. A loader that reads a dataset
natively, by columns, has asked the dataset only once for its memory or its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a dataset, which differ once the dataset has been changed."""

    values: tuple[Any, ...] = ()
    """The facts; empty for a dataset without facts to compare."""
    kept: Sequence[Any] = field(default=(), compare=False)
    """Objects with addresses among the facts. They are kept alive, so that no other object gets
    such an address."""


@dataclass(frozen=True, eq=False)
class DatasetWatch:
    """A dataset, and the facts about it when a loader opened it."""

    dataset: Any
    columns: Sequence[DatasetColumn]
    """The columns of the dataset that can tell whether the dataset has changed."""
    facts: DatasetFacts

    def __len__(self) -> int:
        """Return the number of samples that the dataset has now."""
        return len(self.dataset)

    def is_current(self) -> bool:
        """True if the dataset has not been changed.

        The check takes microseconds; for an image folder it also compares lists of files.
        """
        # The facts are compared first, because the columns may take longer.
        is_same = _read_facts(self.dataset) == self.facts
        return is_same and all(column.is_current() for column in self.columns)


def watch_dataset(dataset: Any, opened: Any) -> DatasetWatch | None:
    """The watch of a dataset that was opened as columns; None if there is nothing to watch.

    A source of another kind asks the dataset for each sample. A tree of arrays has no facts to
    compare. opened: the source that was made of the dataset.
    """
    if not isinstance(opened, ColumnSource):
        return None
    columns = [column for column in opened.columns if isinstance(column, DatasetColumn)]
    facts = _read_facts(dataset)
    return DatasetWatch(dataset, columns, facts) if columns or facts.values else None


def _read_facts(dataset: Any) -> DatasetFacts:
    """The facts about a TensorDataset or a Hugging Face dataset; empty for other datasets."""
    if type(dataset) is TensorDataset:
        tensors = [each for each in dataset.tensors if isinstance(each, torch.Tensor)]
        others = [type(each) for each in dataset.tensors if not isinstance(each, torch.Tensor)]
        # A detached tensor keeps the memory alive even if the program assigns to .data.
        kept = [tensor.detach() for tensor in tensors]
        return DatasetFacts((*map(_describe_tensor, tensors), *others), kept)
    if type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "_indices"):
        table = dataset.data
        return DatasetFacts((id(table), dataset._indices is None, repr(dataset.format)), [table])
    return DatasetFacts()


def _describe_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The form of a tensor, and the address of its values if they have one."""
    form = tensor.dtype, tensor.shape, tensor.layout, tensor.device, tensor.requires_grad
    # Values of these kinds have no single address.
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        return form
    is_lazy = tensor.is_conj() or tensor.is_neg()
    # The loader has copied values that are not contiguous, and a change in place does not reach the
    # copy. torch counts such changes in the tensor's version, which inference tensors lack.
    is_copied = (is_lazy or not tensor.is_contiguous()) and not tensor.is_inference()
    version = tensor._version if is_copied else None
    return form, tensor.data_ptr(), tensor.stride(), tensor.is_conj(), tensor.is_neg(), version
