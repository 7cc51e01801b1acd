"""`loader=peers/fastloop_decoding`: FastLoader for the workload `jpeg`, with files that its threads
decode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from fastloop import FastLoader, Images
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Epochs, Unsupported, option
from fastloop.options.loader.fastloop import fastloader_epochs


@option
class DecodingLoader:
    """FastLoader over the files of dataset=peers/jpegs."""

    store: ClassVar[None] = None
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the loader's threads decode the files."""
        samples: Any = prepared.dataset.open()
        if not hasattr(samples, "into"):
            raise Unsupported(f"peers/fastloop_decoding: {prepared.label} has no encoded images")
        paths = [str(samples.folder / name) for name, _ in samples.files]
        labels = torch.tensor([label for _, label in samples.files])
        size, drop_last = plan.loading.batch_size, plan.loading.drop_last
        images = Images(paths, size=samples.size)
        loader = FastLoader(
            (images, labels), size, drop_last=drop_last, seed=plan.seed, rank=0, world_size=1
        )
        yield fastloader_epochs(loader, plan)
