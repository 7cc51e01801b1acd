"""`loader=raw`: torch's DataLoader over the dataset itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, Uint8Images, Unsupported, option


@option
class Raw:
    """One decoded sample an `__getitem__`, default collate: what most training scripts do."""

    store: ClassVar[None] = None

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches of decoded samples; with collate=fast, of images left in uint8."""
        dataset = prepared.dataset
        if plan.collate is None or plan.collate.takes != "uint8":
            samples = dataset.open()
        elif isinstance(dataset, Uint8Images):
            samples = dataset.open_uint8()
        else:
            raise Unsupported(f"collate=fast: {dataset.label} has no uint8 images")
        with torch_epochs(samples, plan) as epochs:
            yield epochs
