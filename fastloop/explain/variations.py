"""Changes of a job that an override makes, and which of them are worth predicting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.plan import LoadingSettings
from fastloop.explain.rungs import uses_dataloader
from fastloop.trial.job import Job

WORKERS = (0, 1, 2, 4)
PREFETCH = 8
AHEAD = 2


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Overrides that replace those of the command line with the same names."""

    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """The override that the others accompany."""
        return self.overrides[0]

    def apply(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """The overrides of the command line with this change."""
        names = [override.partition("=")[0] for override in self.overrides]
        kept = [each for each in overrides if not any(_concerns(each, name) for name in names)]
        return (*kept, *self.overrides)


def _concerns(override: str, name: str) -> bool:
    """True for an override of the setting, or of anything inside the group, of that name."""
    key = override.lstrip("+~").partition("=")[0]
    return key == name or key.startswith(f"{name}.") or f"@{name}." in key


def variations_of(job: Job) -> list[Variation]:
    """Changes of one setting, or of the loader, that the job does not have yet."""
    loading, variations = job.loading, []
    if (job.torch_threads or usable_cores()) > 1:
        variations.append(("torch_threads=1",))
    if uses_dataloader(job):
        variations += [
            _without_workers(loading) if not workers else (f"num_workers={workers}",)
            for workers in WORKERS
            if workers != loading.num_workers and workers <= 2 * usable_cores()
        ]
        if loading.num_workers and loading.prefetch_factor != PREFETCH:
            variations.append((f"prefetch_factor={PREFETCH}",))
        if torch.accelerator.is_available() and not loading.pin_memory:
            variations.append(("pin_memory=true",))
        if not loading.num_workers and not job.device_prefetch:
            variations.append((f"device_prefetch={AHEAD}",))
        if job.loader.store is None:
            variations.append(("loader=np_memmap",))
        variations.append(_fastloop(loading))
    return [Variation(overrides=overrides) for overrides in variations]


def _without_workers(loading: LoadingSettings) -> tuple[str, ...]:
    """Overrides for no workers, and for no setting that needs some."""
    others = {"prefetch_factor=null": loading.prefetch_factor}
    others |= {"persistent_workers=false": loading.persistent_workers}
    return ("num_workers=0", *(override for override, is_set in others.items() if is_set))


def _fastloop(loading: LoadingSettings) -> tuple[str, ...]:
    """Overrides for FastLoader, which has threads and none of DataLoader's settings."""
    workers = _without_workers(loading) if loading.num_workers else ()
    return ("loader=fastloop", *workers, *(("pin_memory=false",) if loading.pin_memory else ()))
