"""Declare, each in one place, the settings that a job shares with torch's DataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from fastloop.core.bounds import PositiveDepth, SampleCount, Threads
from fastloop.core.types import option

TORCH_PREFETCH = 2
"""DataLoader's default prefetch_factor, which `prefetch_factor=null` stands for."""
DEEP_PREFETCH = 8
"""A larger prefetch_factor, for a longer queue that hides occasional slow batches. tune tries this
number, and explain and attach predict its gain. The choice of 8 is not based on a measurement."""
WORKERS_FOR_WAITING = (8, 16, 32)
"""Numbers of workers that tune tries in addition if reading a sample mostly waits for I/O. Waiting
needs no core, so these numbers may exceed the number of cores."""


@dataclass(frozen=True, kw_only=True)
class LoadingSetting:
    """The declaration of a setting: the facts about it that other modules need."""

    name: str = ""
    """The setting's name, which is also DataLoader's keyword argument. `_read_declarations` takes
    the name and the default from the field of LoadingSettings."""
    default: Any = None
    """The value if the user gives none; conf/config.yaml has it as well."""
    every_loader: bool = False
    """True if every loader honours the setting. If False, only the loaders that name it in
    `honours` do."""
    needs_workers: bool = False
    """True if the setting has no effect without workers. A job without workers is then unsupported
    if the setting's value differs from the default, except as `serves_prefetching` says."""
    serves_prefetching: bool = False
    """True if the setting also affects a process that prefetches to the device
    (device_prefetch_by=process). A job with such a process may then set it without workers."""
    is_tunable: bool = True
    """True if `fastloop tune` may change it."""
    tried: tuple[Any, ...] = ()
    """Values that `fastloop tune` tries unless `space=` names others; conf/tune.yaml has them as
    well. Empty: tune tries the setting only if `space=` names it."""
    is_modelled: bool = False
    """True if explain's model of a loader predicts the effect of a change."""


@option
class LoadingSettings:
    """The values of the settings that a job shares with torch's DataLoader, under torch's names.

    Other modules derive four lists from these fields: the arguments of a DataLoader, the arguments
    offered to a user's loader, the settings that a loader may honour, and the settings that tune
    and explain change.
    """

    batch_size: Annotated[SampleCount, LoadingSetting(every_loader=True)] = 64
    """Number of samples of a batch."""
    num_workers: Annotated[Threads, LoadingSetting(tried=(0, 1, 2, 4), is_modelled=True)] = 0
    """Number of worker processes; 0: the process of the loop makes the batches."""
    pin_memory: Annotated[bool, LoadingSetting(tried=(False, True))] = False
    """True: batches are in page-locked memory."""
    prefetch_factor: Annotated[
        PositiveDepth | None,
        LoadingSetting(needs_workers=True, tried=(None, DEEP_PREFETCH), is_modelled=True),
    ] = None
    """Number of batches that each worker makes ahead of the loop; None: TORCH_PREFETCH."""
    persistent_workers: Annotated[
        bool, LoadingSetting(needs_workers=True, tried=(False, True), is_modelled=True)
    ] = False
    """True: the workers stay alive between epochs."""
    multiprocessing_context: Annotated[
        Literal["fork", "spawn", "forkserver"] | None,
        LoadingSetting(
            needs_workers=True, serves_prefetching=True, tried=(None, "forkserver", "spawn")
        ),
    ] = None
    """Start method of the workers; None: Python's default."""
    drop_last: Annotated[bool, LoadingSetting(every_loader=True, is_tunable=False)] = False
    """True: an incomplete last batch is left out."""

    @property
    def batches_ahead(self) -> int:
        """Number of batches that each worker makes ahead of the loop."""
        return self.prefetch_factor or TORCH_PREFETCH

    def as_arguments(self) -> dict[str, Any]:
        """The settings by name, as keyword arguments of a DataLoader."""
        return {name: getattr(self, name) for name in DECLARED}

    def without_workers(self) -> LoadingSettings:
        """The settings with no workers, and with the defaults of the settings that need workers."""
        of_workers = {each.name: each.default for each in DECLARED.values() if each.needs_workers}
        return replace(self, num_workers=0, **of_workers)


def _read_declarations() -> Mapping[str, LoadingSetting]:
    """Name of a setting -> its declaration, from the fields of LoadingSettings."""
    hints = get_type_hints(LoadingSettings, include_extras=True)
    declared = {}
    for field in fields(LoadingSettings):  # pyright: ignore[reportArgumentType]
        parts = hints[field.name].__metadata__
        (setting,) = [part for part in parts if isinstance(part, LoadingSetting)]
        declared[field.name] = replace(setting, name=field.name, default=field.default)
    return declared


DECLARED = _read_declarations()
"""The declaration of each setting, by name."""
LOADING = tuple(DECLARED)
"""The names of all settings."""
DATALOADER = tuple(each.name for each in DECLARED.values() if not each.every_loader)
"""The names of the settings that every loader built on torch's DataLoader honours, but other
loaders need not honour."""


def worker_settings(*, prefetches_by_process: bool) -> list[str]:
    """Names of the settings that have no effect without workers.

    prefetches_by_process: True: a process prefetches batches to the device, so the settings that
    affect this process are left out.
    """
    return [
        each.name
        for each in DECLARED.values()
        if each.needs_workers and not (each.serves_prefetching and prefetches_by_process)
    ]


def as_override(name: str, value: Any) -> str:
    """The setting as on a command line, such as `persistent_workers=false`."""
    return f"{name}={'null' if value is None else str(value).lower()}"
