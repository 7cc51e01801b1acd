"""The settings that a job shares with torch's DataLoader: each is declared here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal, get_type_hints

from fastloop.core.bounds import PositiveDepth, SampleCount, Threads
from fastloop.core.types import option

TORCH_PREFETCH = 2
"""DataLoader's own prefetch_factor, which `prefetch_factor=null` stands for."""
DEEP_PREFETCH = 8
"""The prefetch_factor of a longer queue, which hides slow batches that come now and then. tune
tries it, and explain and attach predict its gain. No measurement speaks for 8 rather than another
number."""
WORKERS_FOR_WAITING = (8, 16, 32)
"""Numbers of workers that tune tries in addition if reading a sample mostly waits for I/O."""


@dataclass(frozen=True, kw_only=True)
class LoadingSetting:
    """The declaration of a setting: the facts about it that other modules need."""

    name: str = ""
    """The setting's name, which is also DataLoader's keyword argument."""
    default: Any = None
    """The value if the user gives none; conf/config.yaml has it as well."""
    every_loader: bool = False
    """True if every loader honours the setting. If False, only the loaders that name it in
    `honours` do."""
    needs_workers: bool = False
    """True if the setting has no effect without workers: a job without workers is unsupported if
    its value differs from the default."""
    serves_prefetching: bool = False
    """True if the setting also affects a process that prefetches to the device
    (device_prefetch_by=process)."""
    is_tunable: bool = True
    """True if `fastloop tune` may change it."""
    tried: tuple[Any, ...] = ()
    """Values that `fastloop tune` tries unless `space=` names others; conf/tune.yaml has them as
    well. Empty: tune tries the setting only if `space=` names it."""
    is_modelled: bool = False
    """True if explain's model of a loader predicts the effect of a change."""


@option
class LoadingSettings:
    """Settings shared with torch's DataLoader, under torch's names.

    Several lists are derived from these fields: the arguments of a DataLoader, the arguments
    offered to a user's loader, the settings that a loader may honour, and the settings that tune
    and explain change.
    """

    batch_size: Annotated[SampleCount, LoadingSetting(every_loader=True)] = 64
    num_workers: Annotated[Threads, LoadingSetting(tried=(0, 1, 2, 4), is_modelled=True)] = 0
    pin_memory: Annotated[bool, LoadingSetting(tried=(False, True))] = False
    prefetch_factor: Annotated[
        PositiveDepth | None,
        LoadingSetting(needs_workers=True, tried=(None, DEEP_PREFETCH), is_modelled=True),
    ] = None
    persistent_workers: Annotated[
        bool, LoadingSetting(needs_workers=True, tried=(False, True), is_modelled=True)
    ] = False
    multiprocessing_context: Annotated[
        Literal["fork", "spawn", "forkserver"] | None,
        LoadingSetting(
            needs_workers=True, serves_prefetching=True, tried=(None, "forkserver", "spawn")
        ),
    ] = None
    drop_last: Annotated[bool, LoadingSetting(every_loader=True, is_tunable=False)] = False

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
    """The declarations from the fields of LoadingSettings, with their names and defaults."""
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
"""Settings honoured by any loader that is built on torch's DataLoader."""


def worker_settings(*, prefetches_by_process: bool) -> list[str]:
    """Names of the settings that have no effect without workers.

    prefetches_by_process: a process prefetches batches to the device.
    """
    return [
        each.name
        for each in DECLARED.values()
        if each.needs_workers and not (each.serves_prefetching and prefetches_by_process)
    ]


def as_override(name: str, value: Any) -> str:
    """The setting as on a command line, such as `persistent_workers=false`."""
    return f"{name}={'null' if value is None else str(value).lower()}"
