"""List the rungs of a job, each of which is the job without some of its parts.

A rung has the name of its uppermost part: it runs this part, and the parts of all rungs below it.
rung_loaders.py opens the loader of a rung, and rung_passes.py times it.
"""

from __future__ import annotations

from fastloop.core.parts import Part
from fastloop.core.plan import CANONICAL_COLLATE
from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import LoaderTraits, TransformTraits, traits_of
from fastloop.explain.image_decoding import reads_images
from fastloop.explain.job_facts import uses_dataloader
from fastloop.trial.job import Job


def rungs_of(job: Job, prepared: PreparedData) -> tuple[Part, ...]:
    """The rungs that are run for the job, lowest first; the last one is the job as it is."""
    transforms = not traits_of(TransformTraits, job.transform).is_identity
    rungs = [Part.STEP, Part.COPY]
    if transforms and job.transform.where == "device":
        rungs.append(Part.TRANSFORM)
    if not uses_dataloader(job):
        return (*rungs, _rung_of_loading(job))
    rungs.append(Part.HAND_OFF)
    if _collates(job) and not prepared.returns_batches:
        rungs.append(Part.COLLATE)
    if transforms and job.transform.where == "worker":
        rungs.append(Part.TRANSFORM)
    if job.loader.store is not None:
        return (*rungs, Part.READ)
    rungs.append(Part.DECODE)
    # For image files, the rung DECODE runs with files in memory. Another Dataset reads and decodes
    # in __getitem__, so only the difference between a cold and a warm page cache measures reading.
    return (*rungs, Part.READ) if job.cache == "cold" or reads_images(job) else tuple(rungs)


def _rung_of_loading(job: Job) -> Part:
    """The only rung of loading, for a loader that is not built on torch's DataLoader.

    The rung is UNATTRIBUTED if the loader may read files that do not belong to its data.
    """
    if traits_of(LoaderTraits, job.loader).unknown_files:
        return Part.UNATTRIBUTED
    return Part.READ if job.loader.store is not None else Part.DECODE


def _collates(job: Job) -> bool:
    """True if the job's loader honours the setting `collate`, at least for a collate that takes
    samples as the dataset opens them. Collating is then a part."""
    return bool({"collate", CANONICAL_COLLATE} & {*getattr(job.loader, "honours", ())})
