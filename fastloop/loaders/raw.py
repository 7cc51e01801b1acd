"""`loader=raw`: torch's DataLoader over the dataset itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.image_files import uint8_samples
from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class Raw:
    """One decoded sample an `__getitem__`, default collate: what most training scripts do."""

    store: ClassVar[None] = None

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches of decoded samples; with collate=fast, of images left in uint8."""
        as_uint8 = plan.collate is not None and plan.collate.takes == "uint8"
        samples = uint8_samples(prepared.dataset) if as_uint8 else prepared.dataset.open()
        with torch_epochs(samples, plan) as epochs:
            yield epochs
