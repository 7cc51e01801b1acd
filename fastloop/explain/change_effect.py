"""Find the effect of a change of a job on its loading and its steps, by measurements of the job.

From the effect, the model of a loader predicts the seconds of an epoch after the change. A change
with an unknown effect can only be tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import torch

from fastloop.core.loading_settings import DECLARED
from fastloop.core.types import name_of
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.predict import Measured, predict_gathered_seconds, predict_seconds
from fastloop.trial.job import Job

STORE_LOADER = "np_memmap"
"""Name of the loader that runs a DataLoader over a store, which holds decoded samples.
`Measured.kept` is the share of the work of loading that remains with this loader."""
FOLLOWED = frozenset({"loading", "torch_threads", "loader", "decoder", "dataset", "transform"})
"""Settings of a job for which the model can predict the effect of a change."""
FOLLOWED_OF_LOADING = frozenset(name for name, each in DECLARED.items() if each.is_modelled)
"""Settings inside of `loading` for which the model can predict the effect of a change."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a change on loading and on steps, relative to the measured times."""

    kept: float = 1.0
    """Share of the measured work of loading that remains after the change."""
    step_s: float = 0.0
    """Seconds by which each step takes longer."""
    is_gathered: bool = False
    """True if a thread gathers the rows of a store ahead of the loop, as fast as memory permits."""

    def predict(self, job: Job, measured: Measured) -> float:
        """The seconds of a whole epoch of the changed job, by the model."""
        if self.is_gathered:
            return predict_gathered_seconds(job, measured)
        return predict_seconds(job, measured, kept=self.kept, added_step_s=self.step_s)


def find_effect(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a change; None if no measurement shows the effect.

    job: the changed job. present: the job as it is.
    """
    # `batches` and `benchmark` are not compared. `_resize` in what_ifs.py sets both: the cut of the
    # epochs, and the one benchmark that is explained.
    changed = _differences(job, present) - {"batches", "benchmark"}
    # On an accelerator, device_prefetch makes copies run beside the loop, which the passes without
    # workers do not show. On the CPU it is a thread that loads ahead, as the model assumes.
    followed = FOLLOWED if torch.accelerator.is_available() else FOLLOWED | {"device_prefetch"}
    # The model does not follow pinning, the page cache, or changes of the batches themselves, such
    # as their size.
    if changed - followed or _differences(job.loading, present.loading) - FOLLOWED_OF_LOADING:
        return None
    effects = []
    if "loader" in changed:
        effects.append(_effect_of_loader(job, present, measured))
    # All loaders with a known effect read a store. A store holds decoded samples, so with these
    # loaders the decoder has no effect.
    elif changed & {"decoder", "dataset"}:
        effects.append(_effect_of_decoder(job, present, measured))
    if "transform" in changed:
        effects.append(_effect_of_transform(job, present, measured))
    return _combine(effects)


def _combine(effects: Sequence[Effect | None]) -> Effect | None:
    """The effect of several changes together; None if it is not known."""
    known = [each for each in effects if each is not None]
    # predict_gathered_seconds can't add the work of a transform (step_s) to the steps.
    is_gathered = any(each.is_gathered for each in known)
    if len(known) < len(effects) or (is_gathered and any(each.step_s for each in known)):
        return None
    # The changes save different parts of loading, so their savings add up. The shares of the parts
    # were measured with noise, so the sum may be above 1.
    saved = sum(1 - each.kept for each in known)
    added_s = sum(each.step_s for each in known)
    return Effect(kept=max(0.0, 1 - saved), step_s=added_s, is_gathered=is_gathered)


def _effect_of_loader(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of another loader; None if no measurement shows it."""
    name = name_of(job.loader)
    # The measured batches do not show how a loader without a store would read this dataset, or how
    # any loader would read another dataset.
    if job.loader.store is None or not _is_same_but_decoder(job, present):
        return None
    if not uses_dataloader(job):
        return Effect(is_gathered=True) if name == "fastloop" else None
    # If the job reads a store already, its ladder has no work per sample that a store would save.
    is_known = name == STORE_LOADER and present.loader.store is None
    return Effect(kept=measured.kept) if is_known else None


def _effect_of_decoder(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of another decoder; None if no measurement shows it."""
    decoder = getattr(job.dataset, "decoder", None)
    ratio = measured.decoders.get(name_of(decoder)) if decoder else None
    # The decoder was not timed or is not quicker, or the change is not one of the decoder alone.
    if ratio is None or not _is_same_but_decoder(job, present):
        return None
    return Effect(kept=1 - measured.decode_share * (1 - ratio))


def _effect_of_transform(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a transform that moves from workers to the device.

    None for other changes, and if the time of the transform on the device is not known.
    """
    transform: Any = present.transform
    moves = present.transform.where == "worker" and job.transform.where == "device"
    if measured.batch_transform_s is None or not moves:
        return None
    # The transform differs in more than its place.
    if replace(transform, where="device") != job.transform:
        return None
    return Effect(kept=1 - measured.transform_share, step_s=measured.batch_transform_s)


def _is_same_but_decoder(job: Job, present: Job) -> bool:
    """True if the datasets of both jobs are the same, apart from their decoders."""
    one, other = cast("Any", job.dataset), cast("Any", present.dataset)
    if type(one) is not type(other) or not hasattr(one, "decoder"):
        return one == other
    return one == replace(other, decoder=one.decoder)


def _differences(one: Any, other: Any) -> set[str]:
    """Names of the fields in which two dataclasses differ."""
    names = (field.name for field in fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}
