"""UserDataset, the data of a job with a user's loader that takes no dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fastloop.core.plan import Plan
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.types import Epochs, Tree, Unsupported


class LoaderWithOwnData(Protocol):
    """A user's loader that takes no dataset, and delivers data of its own."""

    @property
    def target(self) -> str:
        """The dotted name of the user's function or class."""
        ...

    def open_epochs(self, plan: Plan, dataset: Dataset | None) -> AbstractContextManager[Epochs]:
        """Open the epochs of batches that the loader delivers by this plan.

        dataset: the dataset to load; None: the loader's own data.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class UserDataset:
    """The samples that a user's loader delivers in its first epoch.

    This is the dataset of a job that names no other dataset.
    """

    loader: LoaderWithOwnData
    """The user's loader, which delivers the samples."""
    plan: Plan
    """The plan by which the loader delivers its first epoch."""
    same_data: bool
    """False if each epoch may have other samples, such as random ones."""
    label: ClassVar[str] = "own data"
    num_classes: ClassVar[int] = 0
    uint8_scale: ClassVar[None] = None

    def fetch(self) -> str:
        """An empty fingerprint, because the data has no source besides the loader."""
        return ""

    def open(self) -> Samples:
        """Raise Unsupported, because the loader delivers only batches and not single samples."""
        raise Unsupported(f"{self.loader.target} brings its own data: name one with dataset=…")

    @contextmanager
    def batches(self) -> Iterator[Iterable[Tree]]:
        """Yield the batches of the first epoch."""
        with self.loader.open_epochs(self.plan, None) as epochs:
            yield epochs(0)
