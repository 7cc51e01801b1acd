"""`loader=torchdata`: torchdata's StatefulDataLoader over the dataset itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library, isolate_import
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Epochs, option
from fastloop.data.dataset_batches import needs_no_collate
from fastloop.data.dataset_samples import uint8_samples
from fastloop.data.torch_epochs import identity_collate, torch_epochs

LIBRARY = Library("torchdata", "loader=torchdata", "pip install torchdata")


@option
class StatefulLoader:
    """A loader like loader=raw, with torchdata's StatefulDataLoader in place of DataLoader.

    The state of a StatefulDataLoader can be saved, so its workers send their state with each batch
    (snapshot_every_n_steps=1, the default).
    """

    store: ClassVar[None] = None
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "collate", "transform")
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported if torchdata is not installed."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield epochs of batches of decoded samples.

        The images are uint8 if the collate takes uint8 samples, as collate=fast does.
        """
        library = LIBRARY.load("torchdata.stateful_dataloader")
        collate_fn = identity_collate if needs_no_collate(prepared, plan) else None
        if plan.collate is not None and plan.collate.takes == "uint8":
            samples = uint8_samples(prepared.dataset, plan.collate)
        else:
            samples = prepared.dataset.open()
        build = partial(_without_warnings, library.StatefulDataLoader)
        with torch_epochs(samples, plan, collate_fn, build=build) as epochs:
            yield epochs


def _without_warnings(build: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """The loader that `build` makes of these arguments, without a warning.

    torch would warn that torchdata calls a deprecated function, set_vital.
    """
    with isolate_import():
        return build(*args, **settings)
