"""Which datasets can be written as a store."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fastloop.protocols import Dataset, Store
from fastloop.ragged import is_ragged
from fastloop.types import Unsupported


@runtime_checkable
class Overlapping(Protocol):
    """A dataset whose samples hold the same data several times."""

    def overlap(self) -> str:
        """Why a store of it would be too large, with the sizes; empty where it would not."""
        ...


def check_storable(dataset: Dataset, store: Store | None) -> None:
    """Raise Unsupported, before anything is fetched or written, where the store can't or should not
    hold the dataset."""
    if store is None:
        return
    kind, why = type(store).__module__.rpartition(".")[2], ""
    if is_ragged(dataset):
        why = f"rows are of one length, those of {dataset.label} are not"
    elif isinstance(dataset, Overlapping):
        why = dataset.overlap()
    if why:
        raise Unsupported(f"store={kind}: {why}; loader=raw reads it")
