"""`loader=raw`: torch's DataLoader over the dataset itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class Raw:
    """One decoded sample an `__getitem__`, default collate: what most training scripts do."""

    store: ClassVar[None] = None

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches of decoded samples."""
        with torch_epochs(prepared.dataset.open(), plan) as epochs:
            yield epochs
