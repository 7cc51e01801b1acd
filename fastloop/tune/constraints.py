"""Leaves out candidates that have no effect here, or that exceed memory, disk or budget."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.types import UsageError
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job import Job
from fastloop.tune.candidates import TuneCandidate
from fastloop.tune.memory_forecast import MIB, forecast_trial_mib
from fastloop.tune.pilot import Pilot

DISK_KEPT = 0.1
"""Share of a disk's free space that stores leave."""
PREPARATION = 0.25
"""Largest share of the budget that writing one store may take."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The memory and the time that a candidate may take."""

    memory_mib: float
    budget_s: float | None
    """None: the budget is not a time."""


def check_memory(pilot: Pilot, limit_mib: float | None) -> None:
    """Raise UsageError if the user's limit can't be kept: if memory can't be observed, or the
    present configuration, with which all others are compared, is above it."""
    if limit_mib is None:
        return
    given = f"memory_limit_mib={limit_mib:g}"
    if pilot.memory is None:
        raise UsageError(f"{given}: memory can't be observed here; allowed: null")
    peak_mib = forecast_trial_mib(pilot.present, pilot.memory)
    if peak_mib > limit_mib:
        yours = f"trials of the present configuration may take {peak_mib:,.0f} MiB"
        raise UsageError(f"{given}: {yours}; allowed: from {math.ceil(peak_mib)}")


def drop_settings_without_effect(
    space: Mapping[str, Sequence[str]], present: Job
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """The default space without settings that have no effect on this device and this data, and for
    each of them a line with the reason."""
    device = resolve_device(present.device)
    left_out: dict[str, str] = {}
    if device.type == "cpu":
        left_out["placement"] = "no effect on the CPU, where batches stay where they are"
    if not torch.accelerator.is_available():
        left_out["pin_memory"] = "no effect without an accelerator"
    if present.decoder is None:
        left_out["decoder"] = "the dataset has no encoded images"
    kept = {name: texts for name, texts in space.items() if name not in left_out}
    # More workers only compete for the cores; the space of a user is tried as it is.
    most = 2 * usable_cores()
    if "num_workers" in kept:
        kept["num_workers"] = [
            text for text in kept["num_workers"] if int(text.partition("=")[2]) <= most
        ]
    if usable_cores() == 1 and kept.pop("torch_threads", None):
        left_out["torch_threads"] = "there is one core"
    return kept, [f"{name}: {reason}" for name, reason in left_out.items() if name in space]


def drop_unaffordable(
    candidates: Iterable[TuneCandidate], pilot: Pilot, bounds: Bounds
) -> tuple[list[TuneCandidate], dict[str, int]]:
    """The candidates within the bounds, and the number of others by reason."""
    kept, left_out = [], Counter[str]()
    for each in candidates:
        if reason := _reason(each.job, pilot, bounds):
            left_out[reason] += 1
        else:
            kept.append(each)
    return kept, dict(left_out)


def _reason(job: Job, pilot: Pilot, bounds: Bounds) -> str:
    if pilot.memory is not None:
        peak_mib = forecast_trial_mib(job, pilot.memory)
        if peak_mib > bounds.memory_mib:
            limit = f"above the limit of {bounds.memory_mib:,.0f} MiB"
            return f"num_workers={job.loading.num_workers}: forecast peak of memory {limit}"
    # The present job's store is written already.
    store = job.loader.store
    if store is None or store == pilot.present.loader.store:
        return ""
    # A store holds all samples as rows, whatever its format adds.
    nbytes = pilot.prepared.num_samples * pilot.prepared.sample_nbytes
    free = _free_bytes(Path(store.root))
    if nbytes > (1 - DISK_KEPT) * free:
        return f"its store of {nbytes / MIB:,.0f} MiB: the disk has {free / MIB:,.0f} MiB left"
    if bounds.budget_s is not None and pilot.decode_s > PREPARATION * bounds.budget_s:
        return f"writing its store takes about {pilot.decode_s:,.0f} s of the budget"
    return ""


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk on which the folder is, or will be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free
