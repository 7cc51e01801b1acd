"""`loader=raw`: torch's DataLoader over the dataset itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Epochs, option
from fastloop.data.dataset_batches import needs_no_collate
from fastloop.data.dataset_samples import uint8_samples
from fastloop.data.torch_epochs import identity_collate, torch_epochs


@option
class RawLoader:
    """DataLoader over the dataset itself, as in most training scripts: one sample is decoded per
    `__getitem__`, or a batch by the dataset's own `__getitems__`."""

    store: ClassVar[None] = None
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "collate", "transform")
    has_even_shares: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield epochs of batches of decoded samples; with collate=fast their images are uint8."""
        collate_fn = identity_collate if needs_no_collate(prepared, plan) else None
        if plan.collate is not None and plan.collate.takes == "uint8":
            samples = uint8_samples(prepared.dataset, plan.collate)
        else:
            samples = prepared.dataset.open()
        with torch_epochs(samples, plan, collate_fn) as epochs:
            yield epochs
