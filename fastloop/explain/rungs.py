"""List the rungs of a job's ladder, and find the facts on which its rungs and its verdict depend.

A rung is the job without some of its parts. A rung has the name of its uppermost part; it runs this
part and the parts of all rungs below it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fastloop.core.benchmark import Benchmark, runs_model
from fastloop.core.parts import Part
from fastloop.core.plan import CANONICAL_COLLATE
from fastloop.core.prepared_data import PreparedData
from fastloop.core.traits import LoaderTraits, TransformTraits, traits_of
from fastloop.explain.image_decoding import reads_images
from fastloop.trial.job import Job

T = TypeVar("T", float, np.ndarray)


def rungs_of(job: Job, prepared: PreparedData) -> tuple[Part, ...]:
    """The rungs that are run for the job, lowest first; the last one is the job as it is."""
    transforms = not traits_of(TransformTraits, job.transform).is_identity
    rungs = [Part.STEP, Part.COPY]
    if transforms and job.transform.where == "device":
        rungs.append(Part.TRANSFORM)
    if not uses_dataloader(job):
        return (*rungs, _last_rung(job))
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


def uses_dataloader(job: Job) -> bool:
    """True for a loader that is built on torch's DataLoader, so that parts can be left out."""
    # Only these loaders honour num_workers.
    return "num_workers" in getattr(job.loader, "honours", ())


def overlaps(job: Job) -> bool:
    """True if the job's settings start processes or threads that load beside the loop."""
    return bool(job.loading.num_workers or job.device_prefetch)


def benchmark_name(job: Job) -> str:
    """The name of the job's benchmark that is explained.

    It is the last benchmark that runs a model or, if none does, the last benchmark.
    """
    with_model = [name for name, each in job.benchmark.items() if runs_model(each)]
    return (with_model or list(job.benchmark))[-1]


def benchmark_of(job: Job) -> Benchmark:
    """The job's benchmark that is explained, see `benchmark_name`."""
    return job.benchmark[benchmark_name(job)]


def _collates(job: Job) -> bool:
    """True if the job's loader honours the setting `collate`, so that collating is a part."""
    return bool({"collate", CANONICAL_COLLATE} & {*getattr(job.loader, "honours", ())})


def _last_rung(job: Job) -> Part:
    """The rung of all loading, for a loader that is not built on torch's DataLoader.

    The rung is UNATTRIBUTED if the loader may read files other than those of its data.
    """
    if traits_of(LoaderTraits, job.loader).unknown_files:
        return Part.UNATTRIBUTED
    return Part.READ if job.loader.store is not None else Part.DECODE


def starting_rungs(times: Mapping[Part, Any]) -> tuple[Part, Part]:
    """The rung that shows the start-up of the loader, and the rung below it.

    times: the rungs of the job, lowest first, as keys; the values are not used.
    """
    rungs = list(times)
    # HAND_OFF runs the loader with ready batches. Its start-up is therefore the start of processes
    # alone, without the start of a dataset that opens files.
    starting = Part.HAND_OFF if Part.HAND_OFF in times else rungs[-1]
    return starting, rungs[rungs.index(starting) - 1]


def increase_by_rung(seconds: Mapping[Part, T]) -> dict[Part, T]:
    """Rung -> the seconds that it adds to the rung below it; the lowest rung keeps its seconds.

    seconds: the seconds of each rung, lowest first. A value is a number, or an array of random
    draws of that number.
    """
    added = {rung: seconds[rung] - seconds[below] for below, rung in pairwise(seconds)}
    first = next(iter(seconds))
    return {first: seconds[first], **added}
