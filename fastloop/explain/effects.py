"""The effect of a change on the work of a loop, if measurements tell it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from fastloop.core.loading_settings import DECLARED
from fastloop.core.types import name_of
from fastloop.explain.predict import Measured
from fastloop.explain.rungs import uses_dataloader
from fastloop.trial.job import Job

STORE_LOADER = "np_memmap"
"""A DataLoader over rows of a store; `Measured.kept` is the share of loading that it keeps."""
FOLLOWED = frozenset({"loading", "torch_threads", "loader", "decoder", "dataset", "transform"})
"""Settings with changes that the model may follow."""
FOLLOWED_OF_LOADING = frozenset(name for name, each in DECLARED.items() if each.is_modelled)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Loading and stepping after a change, relative to the measured ones."""

    kept: float = 1.0
    """Share of the work of loading that is left."""
    step_s: float = 0.0
    """Seconds that a step takes longer."""
    is_gathered: bool = False
    """True if a thread gathers the rows of a store ahead, as fast as memory permits."""


def find_effect(candidate: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a change; None if no measurement tells of it, so that it can only be tried."""
    # Both differ by how epochs were cut, and not by the change.
    changed = _differences(candidate, present) - {"batches", "benchmark"}
    # On an accelerator copies run beside the loop, of which the passes without workers show
    # nothing; without one, device_prefetch is a thread that loads ahead.
    followed = FOLLOWED if torch.accelerator.is_available() else FOLLOWED | {"device_prefetch"}
    # Not followed are pinning, the page cache, and all that changes the batches, as their size.
    if changed - followed or _differences(candidate.loading, present.loading) - FOLLOWED_OF_LOADING:
        return None
    if "loader" in changed:
        return _effect_of_loader(candidate, present, measured)
    if changed & {"decoder", "dataset"}:
        return _effect_of_decoder(candidate, present, measured)
    if "transform" in changed:
        return _effect_of_transform(candidate, present, measured)
    return Effect()


def _differences(one: Any, other: Any) -> set[str]:
    names = (field.name for field in fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}


def _effect_of_loader(candidate: Job, present: Job, measured: Measured) -> Effect | None:
    name = name_of(candidate.loader)
    # The measured batches do not tell how another loader reads the same dataset.
    if candidate.loader.store is None:
        return None
    if not uses_dataloader(candidate):
        return Effect(is_gathered=True) if name == "fastloop" else None
    # The ladder of a job that reads a store already has no samples to leave out.
    is_known = name == STORE_LOADER and present.loader.store is None
    return Effect(kept=measured.kept) if is_known else None


def _effect_of_decoder(candidate: Job, present: Job, measured: Measured) -> Effect | None:
    decoder = getattr(candidate.dataset, "decoder", None)
    ratio = measured.decoders.get(name_of(decoder)) if decoder else None
    dataset: Any = present.dataset
    # Another dataset, or more than the decoder, is changed.
    if ratio is None or replace(dataset, decoder=decoder) != candidate.dataset:
        return None
    return Effect(kept=1 - measured.decode_share * (1 - ratio))


def _effect_of_transform(candidate: Job, present: Job, measured: Measured) -> Effect | None:
    transform: Any = present.transform
    moves = present.transform.where == "worker" and candidate.transform.where == "device"
    if measured.batch_transform_s is None or not moves:
        return None
    if replace(transform, where="device") != candidate.transform:
        return None
    return Effect(kept=1 - measured.transform_share, step_s=measured.batch_transform_s)
