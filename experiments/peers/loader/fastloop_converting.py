"""`loader=peers/fastloop_converting`: FastLoader for the workload `normalized`, in which bytes
become floats while they are gathered. No setting of loader=fastloop does this."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from fastloop import FastLoader, converted
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import read_into_memory
from fastloop.options.loader.fastloop import fastloader_epochs


@option
class ConvertingLoader:
    """FastLoader over rows in memory. `fastloop.converted` takes the place of
    transform=peers/to_floats."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = ("transform",)

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the rows are read into memory first."""
        pixels, labels = read_into_memory(self.store.open(prepared.folder))
        transform: Any = plan.transform
        if transform is not None:
            pixels = converted(pixels, mean=transform.mean, std=transform.std)
        size, drop_last = plan.loading.batch_size, plan.loading.drop_last
        loader = FastLoader(
            (pixels, labels), size, drop_last=drop_last, seed=plan.seed, rank=0, world_size=1
        )
        yield fastloader_epochs(loader, plan)
