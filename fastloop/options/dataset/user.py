"""The dataset of a job with a user's loader that takes no dataset, if the job names none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from fastloop.core.plan import Plan
from fastloop.core.protocols import Dataset, Samples
from fastloop.core.types import Epochs, Tree, Unsupported


class LoaderWithOwnData(Protocol):
    """A user's loader that takes no dataset: it delivers data of its own."""

    @property
    def target(self) -> str:
        """The dotted name of the user's function or class."""
        ...

    def open_epochs(self, plan: Plan, dataset: Dataset | None) -> AbstractContextManager[Epochs]:
        """Epochs of the loader's batches; if the dataset is None, of the loader's own data."""
        ...


@dataclass(frozen=True, kw_only=True)
class UserDataset:
    """The samples that a user's loader delivers in its first epoch, if no dataset is named."""

    loader: LoaderWithOwnData
    """The user's loader, which delivers the samples."""
    plan: Plan
    """The plan by which the loader delivers its first epoch."""
    same_data: bool
    """False if the samples are random."""
    label: ClassVar[str] = "own data"
    num_classes: ClassVar[int] = 0
    uint8_scale: ClassVar[None] = None

    def fetch(self) -> str:
        """An empty fingerprint: the data is known only from the loader's batches."""
        return ""

    def open(self) -> Samples:
        """Raise Unsupported: the loader delivers batches only."""
        raise Unsupported(f"{self.loader.target} brings its own data: name one with dataset=…")

    @contextmanager
    def batches(self) -> Iterator[Iterable[Tree]]:
        """Yield the batches of the first epoch."""
        with self.loader.open_epochs(self.plan, None) as epochs:
            yield epochs(0)
