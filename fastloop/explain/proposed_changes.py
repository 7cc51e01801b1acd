"""Propose changes of a job that are worth predicting, and read the changes that the user names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DECLARED, DEEP_PREFETCH, as_override, worker_settings
from fastloop.core.traits import TransformTraits, traits_of
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.explain.job_facts import uses_dataloader
from fastloop.trial.job import Job

PROPOSED_DEPTH = 2
"""Number of batches that a proposed device_prefetch loads ahead."""
LEAST_WARM_SHARE = 0.9
"""The page cache is warm if at least this share of a job's files is in memory."""


def propose_changes(
    job: Job, *, decoders: Sequence[str] = (), in_memory: float | None = None
) -> list[Change]:
    """Changes of one setting, or of the loader, that may make the job faster; also cache=cold.

    Changes that remove the most common causes come first. decoders: names of quicker decoders of
    the job's files. in_memory: share of the pages of the job's files that was in memory before
    anything was measured; None: unknown.
    """
    proposed = [(f"torch_threads={threads}",) for threads in _fewer_threads(job)]
    if uses_dataloader(job):
        proposed += [
            _without_workers(job) if not workers else (f"num_workers={workers}",)
            for workers in _numbers_of_workers()
            if workers != job.loading.num_workers
        ]
        proposed += [(f"decoder={name}",) for name in decoders]
        proposed += _other_loaders(job)
        if transforms_samples(job):
            proposed.append(("++transform.where=device",))
        proposed += _ahead_of_the_loop(job)
    if job.cache == "cold":
        proposed.append(("cache=warm",))
    # The measurements bring the files into memory: only an epoch with a cold cache shows the cost
    # of the first epoch of a training.
    elif job.cache == "as_is" and in_memory is not None and in_memory < LEAST_WARM_SHARE:
        proposed.append(("cache=cold",))
    # The first override names the change; the others only make the changed job possible.
    return [Change(overrides=each, text=each[0].lstrip("+")) for each in proposed]


def read_changes(texts: Sequence[str]) -> list[Change]:
    """The changes that the user names by `what_if=`, each with one or more overrides.

    Raises UsageError for a text without overrides, with a word that is not an override, or with an
    unclosed quote.
    """
    asked = [_split(text) for text in texts]
    return [Change(overrides=each, is_asked=True, text=" ".join(each)) for each in asked]


def _split(text: str) -> tuple[str, ...]:
    try:
        overrides = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"what_if={text}: {error}") from error
    if not overrides or not all("=" in each for each in overrides):
        raise UsageError(f"what_if={text}: allowed: overrides, such as batch_size=128")
    return overrides


def transforms_samples(job: Job) -> bool:
    """True if samples are transformed one by one: whole batches on the device may be faster."""
    is_identity = traits_of(TransformTraits, job.transform).is_identity
    return not is_identity and job.transform.where == "worker"


def _fewer_threads(job: Job) -> list[int]:
    """Smaller numbers of torch's threads that are worth trying."""
    # One thread, because loader and step often compete for cores; and one thread for each core of
    # the quota, because torch ignores the quota and starts a thread for each visible core.
    present = job.torch_threads or torch.get_num_threads()
    return [each for each in dict.fromkeys((1, usable_cores())) if each < present]


def _numbers_of_workers() -> list[int]:
    """Numbers of workers that are worth trying: at most two for each core."""
    cores = usable_cores()
    return sorted(each for each in {0, 1, 2, 4, cores} if each <= 2 * cores)


def _other_loaders(job: Job) -> Iterator[tuple[str, ...]]:
    if job.loader.store is None:
        yield ("loader=np_memmap",)
    yield _fastloop(job)


def _ahead_of_the_loop(job: Job) -> Iterator[tuple[str, ...]]:
    """Overrides for more prefetching, and for pinning."""
    loading = job.loading
    has_device = torch.accelerator.is_available()
    if loading.num_workers and loading.prefetch_factor != DEEP_PREFETCH:
        yield (f"prefetch_factor={DEEP_PREFETCH}",)
    if has_device and not loading.pin_memory:
        yield ("pin_memory=true",)
    # Without an accelerator, device_prefetch is a thread that loads ahead: workers do so already.
    if not job.device_prefetch and (has_device or not loading.num_workers):
        yield (f"device_prefetch={PROPOSED_DEPTH}",)


def _without_workers(job: Job) -> tuple[str, ...]:
    """Overrides that remove the workers, and reset each setting that needs workers."""
    # A job without workers is unsupported if it has a setting that needs workers.
    needless = worker_settings(prefetches_by_process=job.prefetches_by_process)
    resets = (
        as_override(name, DECLARED[name].default)
        for name in needless
        if getattr(job.loading, name) != DECLARED[name].default
    )
    return ("num_workers=0", *resets)


def _fastloop(job: Job) -> tuple[str, ...]:
    """Overrides for FastLoader, which also reset the settings that it does not honour."""
    loading = job.loading
    workers = _without_workers(job) if loading.num_workers else ()
    return ("loader=fastloop", *workers, *(("pin_memory=false",) if loading.pin_memory else ()))
