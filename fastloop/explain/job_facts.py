"""Find facts about a job on which its rungs, its verdict and its changes depend.

They are: whether its loader can be taken apart, whether it loads beside the loop, and which of its
benchmarks is explained.
"""

from __future__ import annotations

from fastloop.core.benchmark import Benchmark, runs_model
from fastloop.trial.job import Job


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
