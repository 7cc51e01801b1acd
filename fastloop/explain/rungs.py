"""List the rungs of a job's ladder: on each rung, the job runs without the parts above the rung.

Also find the facts of a job on which its rungs and its verdict depend.
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
    # The user's own Dataset reads and decodes in __getitem__, so the difference between a cold and
    # a warm cache is the only measure of reading.
    return (*rungs, Part.READ) if job.cache == "cold" or reads_images(job) else tuple(rungs)


def uses_dataloader(job: Job) -> bool:
    """True for a loader that is built on torch's DataLoader, so that parts can be left out."""
    # Only these loaders honour num_workers.
    return "num_workers" in getattr(job.loader, "honours", ())


def overlaps(job: Job) -> bool:
    """True if the job's settings start processes or threads that load beside the loop."""
    return bool(job.loading.num_workers or job.device_prefetch)


def benchmark_name(job: Job) -> str:
    """The name of the benchmark that is explained: the last with a model, or else the last."""
    with_model = [name for name, each in job.benchmark.items() if runs_model(each)]
    return (with_model or list(job.benchmark))[-1]


def benchmark_of(job: Job) -> Benchmark:
    """The benchmark that is explained."""
    return job.benchmark[benchmark_name(job)]


def _collates(job: Job) -> bool:
    """True if the job's loader applies a collate of the job."""
    return bool({"collate", CANONICAL_COLLATE} & {*getattr(job.loader, "honours", ())})


def _last_rung(job: Job) -> Part:
    """The rung of all loading, for a loader that is not built on torch's DataLoader."""
    if traits_of(LoaderTraits, job.loader).unknown_files:
        return Part.UNATTRIBUTED
    return Part.READ if job.loader.store is not None else Part.DECODE


def starting_rungs(times: Mapping[Part, Any]) -> tuple[Part, Part]:
    """The rung in which the loader starts, and the rung below it."""
    rungs = list(times)
    # HAND_OFF runs the loader with ready batches: its start-up is the start of processes alone,
    # without the start of a dataset that opens files.
    starting = Part.HAND_OFF if Part.HAND_OFF in times else rungs[-1]
    return starting, rungs[rungs.index(starting) - 1]


def increase_by_rung(seconds: Mapping[Part, T]) -> dict[Part, T]:
    """The time that each rung adds to the rung below it; the lowest rung has its own time.

    seconds: the time of each rung, the lowest first; an array holds draws of the time.
    """
    added = {rung: seconds[rung] - seconds[below] for below, rung in pairwise(seconds)}
    first = next(iter(seconds))
    return {first: seconds[first], **added}
