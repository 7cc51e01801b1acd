"""The candidates of tuning: all combinations of a space that this machine and this data support,
without those that have no effect here or that exceed memory, disk or budget."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import starmap
from pathlib import Path
from typing import Any

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import (
    DATALOADER,
    DECLARED,
    LOADING,
    as_override,
    worker_settings,
)
from fastloop.core.outputs_folder import nearest_existing
from fastloop.core.types import Unsupported, UsageError
from fastloop.explain.change import Change
from fastloop.explain.what_ifs import ChangedJob
from fastloop.processes.rank_group import resolve_device
from fastloop.processes.resources import MIB
from fastloop.trial.job import Job
from fastloop.trial.support import check_support
from fastloop.tune.peak_memory import forecast_trial_mib
from fastloop.tune.pilot import Pilot

FIRST = ("loader", "decoder", "num_workers")
"""Settings that decide whether others have a meaning. They are crossed first, and a combination of
them that can't run is not crossed with the rest."""
NEUTRAL: Mapping[str, Any] = {
    **{name: DECLARED[name].default for name in DATALOADER},
    "device_prefetch": 0,
}
"""Values that are most likely supported in any combination."""
Overrides = tuple[str, ...]
"""Overrides that belong together."""
Dimensions = Mapping[str, Sequence[Overrides]]
"""For each setting or group, by name, the overrides of each of its values."""
Effect = Mapping[str, Any]
"""The changed values, by name of a field of Job or of LoadingSettings."""
Compose = Callable[[Sequence[str]], Job]
WORKERS_FOR_WAITING = (8, 16, 32)
"""Numbers of workers tried in addition if reading a sample mostly waits for I/O."""
DISK_KEPT = 0.1
"""Share of a disk's free space that stores leave."""
FROZEN = "the samples are random, and a store repeats one draw of them"
"""The reason why a candidate with a new store is left out."""
PREPARATION = 0.25
"""Largest share of the budget that writing one store may take."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The combinations of a space."""

    found: tuple[ChangedJob, ...]
    """The combinations that can be run, without the present configuration."""
    left_out: Mapping[str, int]
    """The number of combinations that can't be run, by the reason."""


def find_tune_candidates(
    present: Job,
    overrides: Sequence[str],
    space: Mapping[str, Sequence[str]],
    compose: Compose,
) -> Candidates:
    """All combinations of the space, each once.

    overrides: of the present job. space: for each setting, by name, the texts name=value of its
    values. compose: returns the job of a list of overrides; raises UsageError for a value that no
    job can have.
    """
    dimensions = {name: [(text,) for text in texts] for name, texts in space.items()}
    effects: dict[Overrides, Effect] = {}

    # There may be thousands of combinations, and Hydra is slow: each change is composed once, and
    # the fields that it changes are combined.
    def find_effect(change: Overrides) -> Effect:
        if change not in effects:
            changed = compose(Change(overrides=change).apply(overrides)) if change else present
            effects[change] = _find_changes(present, changed)
        return effects[change]

    dimensions = _in_order(fold_settings(dimensions, find_effect))
    for changes in dimensions.values():
        for change in changes:
            find_effect(change)
    crossing = _Crossing(present=present, dimensions=dimensions, effects=effects)
    crossing.cross((), [*dimensions])
    found = {each.change.overrides: each for each in crossing.found if each.change.overrides}
    return Candidates(found=tuple(found.values()), left_out=dict(crossing.left_out))


def fold_settings(dimensions: Dimensions, find_effect: Callable[[Overrides], Effect]) -> Dimensions:
    """The dimensions with an option's settings, such as `loader.ahead`, folded into its group.

    Only options that have such a setting are crossed with its values.
    """
    folded = {name: [*changes] for name, changes in dimensions.items() if "." not in name}
    for name, changes in dimensions.items():
        group, dot, _ = name.partition(".")
        if not dot:
            continue
        with_setting: list[Overrides] = []
        for option in folded.get(group, [()]):
            try:
                find_effect((*option, *changes[0]))
            except UsageError:
                # The option has no such setting.
                with_setting.append(option)
            else:
                with_setting += [(*option, *change) for change in changes]
        folded[group] = with_setting
    return folded


@dataclass(kw_only=True)
class _Crossing:
    """The product of the dimensions while it is built."""

    present: Job
    dimensions: Dimensions
    effects: Mapping[Overrides, Effect]
    found: list[ChangedJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def cross(self, chosen: tuple[Overrides, ...], names: Sequence[str]) -> None:
        """Add all combinations of the chosen changes with changes of the other dimensions."""
        if not names:
            self._add(chosen)
            return
        name, *rest = names
        for change in self.dimensions[name]:
            combination = (*chosen, change)
            # A combination that can't run at all is not crossed with the rest: one check replaces
            # the checks of all these combinations.
            if name in FIRST and (reason := self._reason_for_all(combination, rest)):
                self.left_out[reason] += math.prod(len(self.dimensions[each]) for each in rest)
            else:
                self.cross(combination, rest)

    def _reason_for_all(self, chosen: tuple[Overrides, ...], rest: Sequence[str]) -> str:
        """The reason why no combination with these changes can run; empty if one may."""
        neutral = {name: NEUTRAL[name] for name in rest if name in NEUTRAL}
        job, _ = self._repair(self._apply(chosen, neutral))
        return _reason(job)

    def _add(self, chosen: Sequence[Overrides]) -> None:
        job, repairs = self._repair(self._apply(chosen, {}))
        if reason := _reason(job):
            self.left_out[reason] += 1
            return
        # Overrides that change nothing in the present job are not part of a name.
        changed = [text for change in chosen if self.effects[change] for text in change]
        change = Change(overrides=(*changed, *repairs))
        self.found.append(ChangedJob(change=change, job=job))

    def _apply(self, chosen: Sequence[Overrides], values: Effect) -> Job:
        for change in chosen:
            values = {**values, **self.effects[change]}
        return _with_values(self.present, values)

    def _repair(self, job: Job) -> tuple[Job, list[str]]:
        """Reset the user's settings that this job ignores, except those that the space names.

        Returns the job and the overrides that do so.
        """
        # A job with a setting that its loader does not honour is unsupported: the user's
        # prefetch_factor would exclude every candidate without workers.
        honoured = getattr(job.loader, "honours", LOADING)
        names = [
            name for name in DATALOADER if name not in honoured and not DECLARED[name].needs_workers
        ]
        if not job.loading.num_workers or "num_workers" in names:
            names += worker_settings(prefetches_by_process=job.prefetches_by_process)
        values = {
            name: DECLARED[name].default
            for name in names
            if name not in self.dimensions and getattr(job.loading, name) != DECLARED[name].default
        }
        return _with_values(job, values), [*starmap(as_override, values.items())]


def _reason(job: Job) -> str:
    """The reason why the job can't be run here; empty if it can."""
    try:
        check_support(job)
    except Unsupported as error:
        return str(error)
    return ""


def _in_order(dimensions: Dimensions) -> Dimensions:
    """The dimensions, with the settings of FIRST at the beginning."""
    first = [name for name in FIRST if name in dimensions]
    return {name: dimensions[name] for name in dict.fromkeys((*first, *dimensions))}


def _find_changes(present: Job, changed: Job) -> dict[str, Any]:
    """The fields of Job and of LoadingSettings that differ, with the values of the changed job."""
    values = {
        each.name: getattr(changed, each.name)
        for each in fields(Job)  # pyright: ignore[reportArgumentType]
        if each.name != "loading" and getattr(changed, each.name) != getattr(present, each.name)
    }
    for name in LOADING:
        if (value := getattr(changed.loading, name)) != getattr(present.loading, name):
            values[name] = value
    return values


def _with_values(job: Job, values: Effect) -> Job:
    loading = {name: value for name, value in values.items() if name in LOADING}
    others = {name: value for name, value in values.items() if name not in LOADING}
    return replace(job, **others, loading=replace(job.loading, **loading)) if values else job


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The memory and the time that a candidate may take."""

    memory_mib: float
    budget_s: float | None
    """Seconds of the budget; None: the budget is not a time."""


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
        left_out["placement"] = "no effect on the CPU, as batches stay in its memory"
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


def add_workers(space: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The default space with more workers than the cores run at once, for samples that wait."""
    if "num_workers" not in space:
        return dict(space)
    more = [f"num_workers={count}" for count in WORKERS_FOR_WAITING]
    return {**space, "num_workers": [*dict.fromkeys((*space["num_workers"], *more))]}


def drop_slow_starts(
    candidates: Iterable[ChangedJob],
) -> tuple[list[ChangedJob], dict[str, int]]:
    """Drop candidates that combine many workers (WORKERS_FOR_WAITING) with a changed start method.

    Returns the rest, and the number of dropped ones by reason.
    """
    kept, left_out = [], Counter[str]()
    for each in candidates:
        loading = each.job.loading
        context = as_override("multiprocessing_context", loading.multiprocessing_context)
        # Workers that are not forked import torch anew, so that this many take minutes to start.
        if loading.num_workers in WORKERS_FOR_WAITING and context in each.change.overrides:
            left_out[f"num_workers={loading.num_workers} with {context}: slow to start"] += 1
        else:
            kept.append(each)
    return kept, dict(left_out)


def drop_unaffordable(
    candidates: Iterable[ChangedJob], pilot: Pilot, bounds: Bounds
) -> tuple[list[ChangedJob], dict[str, int]]:
    """The candidates within the bounds, and the number of others by reason."""
    kept, left_out = [], Counter[str]()
    for each in candidates:
        if reason := _excess(each.job, pilot, bounds):
            left_out[reason] += 1
        else:
            kept.append(each)
    return kept, dict(left_out)


def _excess(job: Job, pilot: Pilot, bounds: Bounds) -> str:
    """The bound that the job exceeds, and by how much, or the reason why its store can't be
    written; empty if there is none."""
    if pilot.memory is not None:
        peak_mib = forecast_trial_mib(job, pilot.memory)
        if peak_mib > bounds.memory_mib:
            limit = f"above the limit of {bounds.memory_mib:,.0f} MiB"
            return f"num_workers={job.loading.num_workers}: forecast peak of memory {limit}"
    # The present job's store is written already.
    store = job.loader.store
    if store is None or store == pilot.present.loader.store:
        return ""
    # Writing such a store is refused, so the race must not begin a trial that needs it.
    if pilot.prepared.random:
        return FROZEN
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
    return shutil.disk_usage(nearest_existing(folder)).free
