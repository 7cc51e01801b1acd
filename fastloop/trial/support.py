"""Check that a job can run on this machine: `check_support` raises Unsupported if it can't.

Every job passes this check before it is measured. The check needs no data. A loader only declares
in `honours` which settings it honours, and `check_support` refuses a job that changes any other
setting of the loader. The check is called

- by `start_job` in trial/job_start.py, in each process that measures: another node may lack a
  device, and the settings of torchrun are known there;
- by `reason_against` in sweep/early_check.py for the jobs of a command, so that nobody waits
  for the machine, or for stores, in vain, and so that a sweep has a row with the reason;
- for the jobs that a command derives from another job: tune/candidates.py, explain/what_ifs.py, and
  cli/explain.py for the changes that the user has asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fastloop.core.benchmark import Benchmark, runs_model
from fastloop.core.loading_settings import DECLARED, worker_settings
from fastloop.core.optional_libraries import HasInstallCheck, check_libraries
from fastloop.core.plan import DeclaresSettings, PlanChecker, check_honoured, without_store
from fastloop.core.protocols import (
    Collate,
    Dataset,
    HasFiles,
    LengthAwareOrder,
    Order,
    StreamingDataset,
)
from fastloop.core.traits import (
    BenchmarkTraits,
    CollateTraits,
    ExecutionTraits,
    LoaderTraits,
    PlacementTraits,
    traits_of,
)
from fastloop.core.types import Unsupported, name_of
from fastloop.data.cropped_dataset import CroppedDataset
from fastloop.data.cropping import CropTransform
from fastloop.data.dataset_samples import check_uint8
from fastloop.data.prepare_store import check_storable
from fastloop.data.ragged import is_ragged
from fastloop.data.shard_checks import check_stream
from fastloop.processes.environments import environment_for
from fastloop.processes.rank_group import resolve_device
from fastloop.trial.job import Job
from fastloop.trial.page_cache import CAN_EVICT


def check_support(job: Job, world_size: int = 1) -> torch.device:
    """Return the job's device; raises Unsupported, with the reason, if `world_size` processes can't
    run the job on this machine."""
    device = resolve_device(job.device)
    _check_settings(job)
    _check_prefetch(job, device)
    _check_forks(job)
    _check_cache(job)
    _check_samples(job)
    _check_crops(job)
    _check_batches(job)
    check_storable(job.dataset, job.loader.store)
    check_lengths(job.dataset, job.collate, job.order, job.benchmark)
    # Libraries are checked after the settings: nobody should install a library for a job that can't
    # run with it either.
    check_job_libraries(job)
    check_plan(job, world_size)
    for benchmark in job.benchmark.values():
        benchmark.check(job.model, job.dataset.num_classes, None)
    _check_step(job, device)
    if world_size > 1:
        _check_ranks(job)
    return device


def check_job_libraries(job: Job) -> None:
    """Raise Unsupported if a library of the job, or the environment that the job needs, is missing.

    A library that this process lacks may be in an environment of the job's own, which is built
    already, or is built later with build_environment=true.
    """
    environment = environment_for(job.requirements)
    if environment is None:
        _check_libraries(job)
        return
    # In the environment, start_job checks the libraries again.
    if environment.is_built or job.build_environment:
        return
    hint = "`fastloop env` with the same arguments installs that in an environment of its own"
    try:
        _check_libraries(job)
    except Unsupported as error:
        raise Unsupported(f"{error}; or {hint}") from error
    needs = ", ".join(job.requirements)
    raise Unsupported(f"this job needs {needs}: {hint}, as does build_environment=true")


def _check_libraries(job: Job) -> None:
    check_libraries(job.loader)
    if isinstance(job.placement, HasInstallCheck):
        job.placement.check_installed()


def _check_settings(job: Job) -> None:
    """Raise Unsupported for settings that need workers, or an accelerator, if there are none."""
    for name in worker_settings(prefetches_by_process=job.prefetches_by_process):
        is_default = getattr(job.loading, name) == DECLARED[name].default
        if not job.loading.num_workers and not is_default:
            value = str(getattr(job.loading, name)).lower()
            raise Unsupported(f"{name}={value} needs workers: num_workers is 0")
    if job.loading.pin_memory and not torch.accelerator.is_available():
        raise Unsupported("pin_memory=true: there is no accelerator, torch would ignore it")


def _check_step(job: Job, device: torch.device) -> None:
    """Raise Unsupported for an execution or a precision if no benchmark runs a model, or if the
    device can't run it."""
    if not any(map(runs_model, job.benchmark.values())):
        is_eager = traits_of(ExecutionTraits, job.execution).is_identity
        settings = [] if is_eager else [f"execution={name_of(job.execution)}"]
        settings += [f"precision={job.precision}"] if job.precision != "float32" else []
        if settings:
            names = ",".join(job.benchmark)
            hint = f"benchmark={names} runs none; training and inference do"
            raise Unsupported(f"{settings[0]} needs a model: {hint}")
    job.execution.check(device, job.precision, job.benchmark)


def _check_ranks(job: Job) -> None:
    """Raise Unsupported for settings that work in a single process only."""
    trains = any(
        traits_of(BenchmarkTraits, benchmark).trains for benchmark in job.benchmark.values()
    )
    if trains and not traits_of(ExecutionTraits, job.execution).averages_gradients:
        name = name_of(job.execution)
        reason = "it can't average the gradients of several ranks; use execution=eager"
        raise Unsupported(f"execution={name} with launcher=torchrun: {reason}")
    if job.device.startswith("cuda:"):
        hint = "device=cuda gives each rank a GPU"
        raise Unsupported(f"device={job.device} with launcher=torchrun: {hint}")


def _check_prefetch(job: Job, device: torch.device) -> None:
    """Raise Unsupported for ways to prefetch that the device or other settings rule out."""
    by = job.device_prefetch_by
    if by and not job.device_prefetch:
        raise Unsupported(f"device_prefetch_by={by} needs device_prefetch, which is 0")
    if by == "stream" and device.type != "cuda":
        raise Unsupported(f"device_prefetch_by=stream: needs CUDA, device is {device}")
    on_device = traits_of(LoaderTraits, job.loader).is_on_device
    if by == "process" and device.type != "cpu" and on_device:
        reason = f"its batches are on {device} and can't be shared between processes"
        raise Unsupported(f"device_prefetch_by=process: loader={name_of(job.loader)}: {reason}")
    if job.pinned_buffers and device.type != "cuda":
        raise Unsupported(f"pinned_buffers={job.pinned_buffers}: needs CUDA, device is {device}")
    if job.pinned_buffers and job.loading.pin_memory:
        raise Unsupported("pinned_buffers with pin_memory=true: batches would be pinned twice")
    if by == "process" and job.loading.pin_memory:
        reason = "batches come in shared memory, which is not pinned"
        hint = "use pinned_buffers=2 and pin_memory=false"
        raise Unsupported(f"device_prefetch_by=process with pin_memory=true: {reason}; {hint}")


def _check_forks(job: Job) -> None:
    """Raise Unsupported if the loader would fork after a placement has started threads."""
    # Every epoch may fork, and before a later epoch this process has placed batches. If one of the
    # placement's threads holds a lock when the process forks, the child can never release it.
    settings = [f"num_workers={job.loading.num_workers}"] if job.loading.num_workers else []
    settings += ["device_prefetch_by=process"] if job.prefetches_by_process else []
    runs_threads = traits_of(PlacementTraits, job.placement).runs_threads
    if settings and runs_threads and job.start_method() == "fork":
        name = name_of(job.placement)
        reason = f"{name} runs threads, and a fork of them may hang"
        hint = "use multiprocessing_context=spawn or forkserver"
        raise Unsupported(f"placement={name} with {settings[0]}: {reason}; {hint}")


def _check_cache(job: Job) -> None:
    """Raise Unsupported for a cache state that can't be set here."""
    if job.cache == "cold" and not CAN_EVICT:
        raise Unsupported("cache=cold: this system has no posix_fadvise to evict a file's pages")
    if job.cache != "as_is" and (reason := traits_of(LoaderTraits, job.loader).unknown_files):
        raise Unsupported(f"cache={job.cache}: {reason}")
    if job.cache != "as_is" and not (job.loader.store or isinstance(job.dataset, HasFiles)):
        reason = "the dataset does not name its files"
        hint = "give it a method files(), as HasFiles in fastloop/core/protocols.py describes"
        raise Unsupported(f"cache={job.cache}: {reason}; {hint}")


def _check_samples(job: Job) -> None:
    """Raise Unsupported if decoder, collate and transform do not fit the dataset or each other."""
    if job.decoder is not None and getattr(job.dataset, "decoder", None) is None:
        name = name_of(job.decoder)
        raise Unsupported(f"decoder={name}: dataset {job.dataset.label} has no encoded images")
    # If a collate of the user's makes the samples, a broken sample is reported when the store is
    # written.
    if traits_of(CollateTraits, job.collate).defines_samples:
        pass
    elif job.collate.tolerant and job.loader.store is not None:
        reason = "a store has no broken samples to leave out; use loader=raw"
        raise Unsupported(f"collate={name_of(job.collate)}: {reason}")
    if job.collate.takes == "uint8" and job.transform.where == "worker":
        reason = "samples are uint8 until they are on the device, see transform.where=device"
        name = name_of(job.collate)
        raise Unsupported(f"collate={name} with transform.where=worker: {reason}")


def _check_crops(job: Job) -> None:
    """Raise Unsupported for a transform that crops if the dataset has no labelled image files or
    resizes them or, for random crops, if the loader would not draw new ones in each epoch."""
    if not isinstance(job.transform, CropTransform):
        return
    name = f"transform={name_of(job.transform)}"
    dataset = job.dataset
    if not isinstance(dataset, CroppedDataset):
        hint = "dataset=image_folder and dataset=photos have some"
        raise Unsupported(f"{name}: dataset {dataset.label} has no labelled image files; {hint}")
    if size := dataset.dataset.size:
        reason = "the images would be resized twice; use dataset.size=null"
        raise Unsupported(f"{name} with dataset.size={[*size]}: {reason}")
    if not dataset.cropping.is_random:
        return
    loader = f"{name}: loader={getattr(job.loader, 'target', name_of(job.loader))}"
    if job.loader.store is not None:
        hint = "loader=raw, fastloop, spdl and grain draw new ones in each epoch, without a store"
        raise Unsupported(f"{loader} reads a store, which repeats one draw; {hint}")
    if not traits_of(LoaderTraits, job.loader).has_even_shares:
        reason = (
            "sets its own order and does not pass on the epoch's number, which random crops need"
        )
        raise Unsupported(f"{loader} {reason}; loader=raw, for example, passes it on")


def _check_batches(job: Job) -> None:
    """Raise Unsupported for `batches=` with a streaming dataset."""
    if job.batches and isinstance(job.dataset, StreamingDataset):
        reason = f"dataset {job.dataset.label} is read to its end"
        raise Unsupported(f"batches={job.batches}: {reason}; fastloop.bench takes batches= for it")


def check_plan(job: Job, world_size: int = 1) -> None:
    """Raise Unsupported if the job's loader can't follow the plan, or would ignore a part of it, in
    `world_size` processes."""
    loader = job.loader
    plan = job.plan(job.seed)
    if isinstance(loader, PlanChecker):
        loader.check(plan)
    if traits_of(LoaderTraits, loader).shuffles_itself:
        check_stream(name_of(loader), plan, world_size)
    if isinstance(loader, DeclaresSettings):
        reader = without_store(loader)
        of_reader = reader.honours if isinstance(reader, DeclaresSettings) else ()
        check_honoured(name_of(loader), plan, loader.honours, of_reader)
    if job.collate.takes == "uint8":
        check_uint8(job.dataset, job.collate)


def check_lengths(
    dataset: Dataset, collate: Collate, order: Order, benchmarks: Mapping[str, Benchmark]
) -> None:
    """Raise Unsupported if the lengths of the dataset's samples do not fit the options.

    Some options need samples of equal length, such as a model; others need samples that differ in
    length, such as collate=pad.
    """
    if not is_ragged(dataset):
        reason = (
            f"dataset {dataset.label} does not declare that its samples differ in length; "
            "dataset=texts does, dataset=parquet or hf_arrow with dataset.ragged=true, "
            "and a Dataset of your own with collate=pad"
        )
        if collate.takes == "ragged":
            raise Unsupported(f"collate={name_of(collate)}: {reason}")
        if isinstance(order, LengthAwareOrder):
            raise Unsupported(f"order={name_of(order)}: {reason}")
    elif collate.takes != "ragged":
        raise Unsupported(f"dataset {dataset.label}: samples differ in length: use collate=pad")
    elif names := [name for name, benchmark in benchmarks.items() if runs_model(benchmark)]:
        reason = "there is no model for samples that differ in length yet"
        raise Unsupported(f"benchmark={names[0]}: {reason}; benchmark=traversal runs")
