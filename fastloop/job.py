"""A job is one resolved configuration, and whether it can be run here."""

from __future__ import annotations

import multiprocessing
import re
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from fastloop.cache_state import CacheState
from fastloop.collates.default import Default
from fastloop.environment import resolve_device
from fastloop.executions.cuda_graph import CudaGraph
from fastloop.executions.data_parallel import DataParallel
from fastloop.lengths import check_lengths
from fastloop.loaders.device_resident import DeviceResident
from fastloop.optional import Needing, check_libraries
from fastloop.own_loader import OwnLoader
from fastloop.page_cache import CAN_EVICT
from fastloop.placements.jax import Jax
from fastloop.plans import Choosy, honours_only
from fastloop.protocols import (
    Benchmark,
    Collate,
    Dataset,
    Decoder,
    Execution,
    Loader,
    Model,
    OnDisk,
    Order,
    Placement,
    Transform,
    Uint8Images,
)
from fastloop.storable import check_storable
from fastloop.types import Plan, Unsupported, option


def _known_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda|cuda:\d+", name):
        raise ValueError("allowed are auto, cpu, mps, cuda and cuda:<number>")
    return name


@option
class Job:
    """What one run measures. Plain data: it can be sent to a fresh process, and hashed."""

    dataset: Dataset
    loader: Loader
    order: Order
    decoder: Decoder | None = None
    transform: Transform
    collate: Collate
    placement: Placement
    benchmark: dict[str, Benchmark]
    model: Model
    execution: Execution
    precision: Literal["float32", "bf16", "fp16"]
    batch_size: PositiveInt
    epochs: PositiveInt
    trials: PositiveInt
    num_workers: NonNegativeInt
    pin_memory: bool
    prefetch_factor: PositiveInt | None
    persistent_workers: bool
    multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None
    drop_last: bool
    seed: NonNegativeInt
    device: Annotated[str, AfterValidator(_known_device)]
    torch_threads: PositiveInt | None
    learning_rate: PositiveFloat
    pinned_buffers: PositiveInt | None
    device_prefetch: NonNegativeInt
    device_prefetch_by: Literal["stream", "thread", "process"] | None
    same_data: bool
    cache: CacheState
    trial_timeout_s: Annotated[float, Field(gt=0, le=2_000_000)]  # poll knows no more

    def plan(self, seed: int) -> Plan:
        """How the loader is to deliver a trial's epochs."""
        return Plan(
            order=self.order,
            seed=seed,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=self.start_method() if self.num_workers else None,
            drop_last=self.drop_last,
            collate=None if isinstance(self.collate, Default) else self.collate,
            transform=self.transform if self.transform.where == "worker" else None,
            device=resolve_device(self.device),
        )

    def start_method(self) -> str:
        """How workers start, and a process that loads ahead."""
        # The first is what a user's plain script would get. multiprocessing's own current method is
        # not: in a trial's process it is "forkserver", with which the first batch comes after
        # 1.35 s instead of 0.005.
        return self.multiprocessing_context or multiprocessing.get_all_start_methods()[0]


def check_support(job: Job, world_size: int = 1) -> torch.device:
    """The job's device; raises Unsupported, with the reason, where the job can't be run here, by so
    many processes together."""
    device = resolve_device(job.device)
    check_libraries(job.loader)
    if isinstance(job.placement, Needing):
        job.placement.check_installed()
    _check_settings(job)
    _check_ahead(job, device)
    _check_forks(job)
    _check_cache(job)
    _check_samples(job)
    check_storable(job.dataset, job.loader.store)
    check_lengths(job.dataset, job.collate, job.order, job.benchmark)
    _check_plan(job)
    for benchmark in job.benchmark.values():
        benchmark.check(job.model, job.dataset.num_classes, None)
    _check_step(job, device)
    if world_size > 1:
        _check_ranks(job)
    return device


def _check_settings(job: Job) -> None:
    of_workers = ["prefetch_factor", "persistent_workers"]
    of_workers += [] if _loads_in_a_process(job) else ["multiprocessing_context"]
    for name in of_workers:
        if not job.num_workers and getattr(job, name):
            shown = str(getattr(job, name)).lower()
            raise Unsupported(f"{name}={shown} needs workers: num_workers is 0")
    if job.pin_memory and not torch.accelerator.is_available():
        raise Unsupported("pin_memory=true: no accelerator is here, torch would ignore it")


def _check_step(job: Job, device: torch.device) -> None:
    """Execution and precision have to be there, and a model that they are for."""
    if all(one.limit == "gather" for one in job.benchmark.values()):
        name = type(job.execution).__module__.rpartition(".")[2]
        given = [f"execution={name}"] if name != "eager" else []
        given += [f"precision={job.precision}"] if job.precision != "float32" else []
        if given:
            raise Unsupported(f"{given[0]}: no model runs in benchmark={','.join(job.benchmark)}")
    job.execution.check(device, job.precision, job.benchmark)


def _check_ranks(job: Job) -> None:
    """What one process has to itself alone."""
    if "training" in job.benchmark and isinstance(job.execution, CudaGraph | DataParallel):
        name = type(job.execution).__module__.rpartition(".")[2]
        why = "several ranks average their gradients in the middle of a step"
        raise Unsupported(f"execution={name} with launcher=torchrun: {why}")
    if job.device.startswith("cuda:"):
        raise Unsupported(f"device={job.device} with launcher=torchrun: device=cuda is each rank's")


def _check_ahead(job: Job, device: torch.device) -> None:
    by = job.device_prefetch_by
    if by and not job.device_prefetch:
        raise Unsupported(f"device_prefetch_by={by} needs batches ahead: device_prefetch is 0")
    if by == "stream" and device.type != "cuda":
        raise Unsupported(f"device_prefetch_by=stream: needs CUDA, device is {device}")
    if by == "process" and device.type != "cpu" and isinstance(job.loader, DeviceResident):
        why = f"its batches are on {device}, which no process hands over"
        raise Unsupported(f"device_prefetch_by=process: loader=device_resident: {why}")
    if job.pinned_buffers and device.type != "cuda":
        raise Unsupported(f"pinned_buffers={job.pinned_buffers}: needs CUDA, device is {device}")
    if job.pinned_buffers and job.pin_memory:
        raise Unsupported("pinned_buffers with pin_memory=true: batches would be pinned twice")
    if by == "process" and job.pin_memory:
        why = "a batch comes from there in shared memory, see pinned_buffers"
        raise Unsupported(f"device_prefetch_by=process with pin_memory=true: {why}")


def _loads_in_a_process(job: Job) -> bool:
    return bool(job.device_prefetch) and job.device_prefetch_by == "process"


def _check_forks(job: Job) -> None:
    """By the time that a loader starts a process, this one has placed batches: it runs jax's
    threads, and no lock that one of them holds is ever given back in a fork."""
    starts = [f"num_workers={job.num_workers}"] if job.num_workers else []
    starts += ["device_prefetch_by=process"] if _loads_in_a_process(job) else []
    if starts and isinstance(job.placement, Jax) and job.start_method() == "fork":
        why = "jax runs threads, and a fork of them may hang"
        works = "multiprocessing_context=spawn and forkserver start without one"
        raise Unsupported(f"placement=jax with {starts[0]}: {why}; {works}")


def _check_cache(job: Job) -> None:
    if job.cache == "cold" and not CAN_EVICT:
        raise Unsupported("cache=cold: this system has no posix_fadvise to empty a file's cache")
    if job.cache != "as_is" and isinstance(job.loader, OwnLoader):
        raise Unsupported(f"cache={job.cache}: {job.loader.target} does not tell its files")
    if job.cache != "as_is" and not (job.loader.store or isinstance(job.dataset, OnDisk)):
        raise Unsupported(f"cache={job.cache}: the dataset does not tell its files, see OnDisk")


def _check_samples(job: Job) -> None:
    """What decodes, collates and transforms has to fit the dataset and each other."""
    if job.decoder is not None and getattr(job.dataset, "decoder", None) is None:
        name = type(job.decoder).__module__.rpartition(".")[2]
        raise Unsupported(f"decoder={name}: dataset {job.dataset.label} has no encoded images")
    if job.collate.tolerant and job.loader.store is not None:
        raise Unsupported("collate=skip_broken: a store holds whole samples only, see loader=raw")
    if job.collate.takes == "uint8" and job.transform.where == "worker":
        why = "there are no floats before the device, see transform.where=device"
        raise Unsupported(f"collate=fast with transform.where=worker: {why}")


def _check_plan(job: Job) -> None:
    """What the loader would say as it is opened, before anything is prepared for it."""
    loader, plan = job.loader, job.plan(job.seed)
    if isinstance(loader, OwnLoader):
        loader.check(plan)
        return
    if isinstance(loader, Choosy):
        honours_only(type(loader).__module__.rpartition(".")[2], plan, *loader.honours)
    if job.collate.takes == "uint8" and not isinstance(job.dataset, Uint8Images):
        raise Unsupported(f"collate=fast: {job.dataset.label} has no uint8 images")
