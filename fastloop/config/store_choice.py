"""Choose if a job's loader reads its store, or the dataset's samples themselves.

A store is a copy of all samples as rows of equal size, in files. No store fits some jobs, such as
those with samples that differ in length or in each epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from fastloop.config.foreign_settings import name_in

if TYPE_CHECKING:
    from fastloop.core.plan import Loader
    from fastloop.trial.job import Job


def choose_store(job: Job, overrides: Sequence[str]) -> Job:
    """The job without its store if the samples, the collate or the transform rule the store out.

    With a collate for samples that differ in length, such as collate=pad, a user's Dataset is also
    marked as ragged. A loader that copies all rows into memory keeps its store. overrides:
    overrides of the command line; if one of them asks for a store, the store is kept, too.
    """
    from fastloop.core.plan import without_store
    from fastloop.core.traits import LoaderTraits, traits_of

    job = _mark_ragged(job)
    is_asked_for = any("loader.store" in name_in(override) for override in overrides)
    # A loader that copies all rows into memory needs a store to read the rows from.
    if is_asked_for or traits_of(LoaderTraits, job.loader).in_memory:
        return job
    reader = without_store(job.loader)
    if reader is not None and _rules_out_store(job, reader):
        return replace(job, loader=reader)
    return job


def _mark_ragged(job: Job) -> Job:
    """The job with its dataset marked as ragged, if only the job's collate says so.

    The samples of a ragged dataset differ in length.
    """
    dataset: Any = job.dataset
    # `ragged` is None if the dataset does not say whether it is ragged, as a user's Dataset.
    is_unknown = is_dataclass(job.dataset) and getattr(dataset, "ragged", False) is None
    if job.collate.takes == "ragged" and is_unknown:
        return replace(job, dataset=replace(dataset, ragged=True))
    return job


def _rules_out_store(job: Job, reader: Loader) -> bool:
    """True if the job's loader can run the job only without its store.

    reader: the loader without its store, which reads the dataset's samples.
    """
    from fastloop.data.cropped_dataset import crops_at_random
    from fastloop.data.ragged import is_ragged

    if crops_at_random(job.dataset):
        return True
    needs_samples = is_ragged(job.dataset) or not _honours(job.loader, job)
    return needs_samples and _honours(reader, job)


def _honours(loader: Loader, job: Job) -> bool:
    """True if the loader calls the job's collate and transform, as far as the job needs them.

    The default collate need not be called, nor a transform that changes nothing or runs on the
    device.
    """
    from fastloop.core.plan import DeclaresSettings, honours_collate
    from fastloop.core.traits import CollateTraits, TransformTraits, traits_of

    honours = loader.honours if isinstance(loader, DeclaresSettings) else ()
    is_default = traits_of(CollateTraits, job.collate).is_default
    is_identity = traits_of(TransformTraits, job.transform).is_identity
    in_workers = job.transform.where == "worker" and not is_identity
    calls_collate = is_default or honours_collate(honours, job.collate)
    return calls_collate and (not in_workers or "transform" in honours)


def describe_missing_store(job: Job, choices: Mapping[str, str]) -> str:
    """A line that says why the job's loader reads the samples and not its store.

    job: a job that `choose_store` has left without its store. choices: group -> option.
    """
    from fastloop.core.traits import CollateTraits, traits_of
    from fastloop.data.cropped_dataset import crops_at_random

    is_default = traits_of(CollateTraits, job.collate).is_default
    group = "transform" if is_default or crops_at_random(job.dataset) else "collate"
    reason = f"no store fits {group}={choices[group]}"
    return f"loader={choices['loader']} reads the samples: {reason}"
