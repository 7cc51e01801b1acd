"""Defaults that other settings of the job rule out: what fits takes their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastloop.config.catalogue import option_values
from fastloop.config.foreign_settings import name_in

if TYPE_CHECKING:
    from fastloop.core.plan import Loader
    from fastloop.trial.job import Job

DIRECT = "fastloop.options.placement.direct.DirectPlacement"
PAD = "fastloop.options.collate.pad.PadCollate"
FITS_PADDED = "recursive"
"""The placement that takes the place of the default for padded batches."""


def fit_placement(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The configuration with placement=recursive in place of the default, for collate=pad.

    Padded batches have (padded, lengths) in them, which placement=direct does not open.
    """
    is_asked_for = any(name_in(override).startswith("placement") for override in overrides)
    is_default = values["placement"].get("_target_") == DIRECT and not is_asked_for
    if values["collate"].get("_target_") != PAD or not is_default:
        return values
    return values | {"placement": {**option_values("placement", FITS_PADDED)}}


def fit_defaults(job: Job, overrides: Sequence[str]) -> Job:
    """The job with a user's Dataset of several lengths for collate=pad, and without a store that
    its samples, collate or transform rule out.

    overrides: overrides of the command line. A store that one of them asks for stays.
    """
    from fastloop.core.traits import LoaderTraits, traits_of

    dataset: Any = job.dataset
    # Whether the samples of a user's Dataset differ in length is known only by the collate.
    if job.collate.takes == "ragged" and getattr(dataset, "ragged", False) is None:
        job = replace(job, dataset=replace(dataset, ragged=True))
    is_asked_for = any("loader.store" in name_in(override) for override in overrides)
    reads_samples = traits_of(LoaderTraits, job.loader).reads_samples
    if is_asked_for or not reads_samples or job.loader.store is None:
        return job
    without_store: Any = replace(job.loader, store=None)  # pyright: ignore[reportArgumentType]
    return replace(job, loader=without_store) if _rules_out_store(job, without_store) else job


def _rules_out_store(job: Job, without_store: Loader) -> bool:
    """True if the loader can run the job only without its store."""
    from fastloop.data.cropped_dataset import crops_at_random
    from fastloop.data.ragged import is_ragged

    if crops_at_random(job.dataset):
        return True
    needs_samples = is_ragged(job.dataset) or not _honours(job.loader, job)
    return needs_samples and _honours(without_store, job)


def _honours(loader: Loader, job: Job) -> bool:
    """True if the loader calls the collate and the transform of the job."""
    from fastloop.core.plan import DeclaresSettings, honours_collate
    from fastloop.core.traits import CollateTraits, TransformTraits, traits_of

    honours = loader.honours if isinstance(loader, DeclaresSettings) else ()
    is_default = traits_of(CollateTraits, job.collate).is_default
    is_identity = traits_of(TransformTraits, job.transform).is_identity
    in_workers = job.transform.where == "worker" and not is_identity
    calls_collate = is_default or honours_collate(honours, job.collate)
    return calls_collate and (not in_workers or "transform" in honours)
