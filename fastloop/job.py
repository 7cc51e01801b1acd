"""A job is one resolved configuration; run_trial is what is done with it."""

from __future__ import annotations

import multiprocessing
import re
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Annotated, Literal

import optree
import torch
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fastloop.cache_state import CacheState, Opened, bring_to, opened
from fastloop.collates.default import Default
from fastloop.digest import leaves_of
from fastloop.environment import cpu_seconds, load_average, resolve_device
from fastloop.gate import check_data, num_delivered
from fastloop.lengths import check_lengths, told_lengths
from fastloop.page_cache import CAN_EVICT, evict, total_mib
from fastloop.result import Attribution, Measured, Trial
from fastloop.spans import Spans, now_ns, seconds_between, synchronize, wall_ms
from fastloop.transforms.none import NoTransform
from fastloop.types import (
    Benchmark,
    Collate,
    Dataset,
    Decoder,
    Epochs,
    Loader,
    Model,
    OnDisk,
    Order,
    Placement,
    Plan,
    Prepared,
    Setup,
    Transform,
    Tree,
    Unsupported,
    option,
)
from fastloop.window import Consumer, drain, instrumented, may_be_unread, replayed, timed
from fastloop.yardstick import limit_rows_per_s

TRIAL_SEED_STRIDE = 10_000
"""Trials are this far apart, because orders take seed + epoch."""
REPLAYED_STEPS = 300
HELD_BATCHES = 32


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
    cache: CacheState
    trial_timeout_s: Annotated[float, Field(gt=0, le=2_000_000)]  # poll knows no more

    @model_validator(mode="after")
    def _workers_and_their_settings(self) -> Job:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            if not self.num_workers and getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)} needs workers: num_workers is 0")
        return self

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
            multiprocessing_context=self._start_method() if self.num_workers else None,
            drop_last=self.drop_last,
            collate=None if isinstance(self.collate, Default) else self.collate,
            transform=self.transform if self.transform.where == "worker" else None,
        )

    def _start_method(self) -> str:
        # The first is what a user's plain script would get. multiprocessing's own current method is
        # not: in a trial's process it is "forkserver", with which the first batch comes after
        # 1.35 s instead of 0.005.
        return self.multiprocessing_context or multiprocessing.get_all_start_methods()[0]


def check_support(job: Job) -> torch.device:
    """The job's device; raises Unsupported, with the reason, where the job can't be run here."""
    device = resolve_device(job.device)
    if job.pin_memory and not torch.accelerator.is_available():
        raise Unsupported("pin_memory=true: no accelerator is here, torch would ignore it")
    if job.cache == "cold" and not CAN_EVICT:
        raise Unsupported("cache=cold: this system has no posix_fadvise to empty a file's cache")
    if job.cache != "as_is" and not (job.loader.store or isinstance(job.dataset, OnDisk)):
        raise Unsupported(f"cache={job.cache}: the dataset does not tell its files, see OnDisk")
    if job.decoder is not None and getattr(job.dataset, "decoder", None) is None:
        name = type(job.decoder).__module__.rpartition(".")[2]
        raise Unsupported(f"decoder={name}: dataset {job.dataset.label} has no encoded images")
    if job.collate.tolerant and job.loader.store is not None:
        raise Unsupported("collate=skip_broken: a store holds whole samples only, see loader=raw")
    check_lengths(job.dataset, job.collate, job.order, job.benchmark)
    return device


def run_trial(job: Job, prepared: Prepared, number: int, asked_ns: int) -> Trial:
    """One trial: open, check the data, warm up and time each benchmark, check the data again.

    With cache=cold the loader is opened afresh before each window.

    asked_ns: when this process was asked for. Raises Invalid where the data is not the dataset's.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms, load = wall_ms(), load_average()
    device, plan = _start(job, prepared, number)
    check = partial(_check_epoch, job, prepared, plan, device)
    with opened(partial(job.loader.open, prepared, plan)) as loading:
        check(loading.epochs, job.epochs + 1)
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        benchmarks = {
            name: _measure(job, benchmark, prepared, setup, loading)
            for name, benchmark in job.benchmark.items()
        }
        check(loading.epochs, job.epochs + 2)
    return Trial(
        number=number,
        seed=plan.seed,
        benchmarks=benchmarks,
        torch_threads=torch.get_num_threads(),
        multiprocessing_context=plan.multiprocessing_context,
        load_average=load,
        launch_s=launch_s,
        started_ms=started_ms,
        data_mib=total_mib(prepared.files) if prepared.files else None,
    )


def run_instrumented(job: Job, prepared: Prepared, name: str) -> Attribution:
    """Where one benchmark's time goes: one epoch with spans, and the price in CPU time.

    The epoch is warm; with cache=cold it is cold, as is the first batch.
    """
    device, plan = _start(job, prepared, 0)
    place = _stepped(job, prepared, device)
    torch.zeros(1, device=device)  # so that starting the device is not the loader's to pay
    synchronize(device)
    if job.cache == "cold":
        evict(prepared.files)
    opened_ns = now_ns()
    with opened(partial(job.loader.open, prepared, plan)) as loading:
        place(next(iter(loading.epochs(job.epochs))))
        synchronize(device)
        first_batch_s = seconds_between(opened_ns, now_ns())
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        consume, _ = job.benchmark[name].start(place, setup)
        drain(loading.epochs, consume, job.epochs, device)
        spans = Spans()
        consume, _ = job.benchmark[name].start(spans.timed("place", place), setup)
        bring_to(job.cache, prepared.files, loading)
        cpu_before = cpu_seconds()
        window = instrumented(loading.epochs, consume, spans, device)
        cpu_s = cpu_seconds() - cpu_before
    return Attribution(
        seconds=window.seconds,
        first_batch_s=first_batch_s,
        wait_s=spans.seconds("wait"),
        place_s=spans.seconds("place"),
        cpu_s=cpu_s,
    )


def _check_epoch(
    job: Job, prepared: Prepared, plan: Plan, device: torch.device, epochs: Epochs, epoch: int
) -> None:
    """check_data of what the step would receive, but for the transform: its figures are random."""
    deliver = _delivered(job, prepared, device)
    if plan.transform is None:
        check_data(prepared, plan, map(deliver, epochs(epoch)), epoch)
        return
    with job.loader.open(prepared, replace(plan, transform=None)) as untransformed:
        check_data(prepared, plan, map(deliver, untransformed(epoch)), epoch)


def _start(job: Job, prepared: Prepared, number: int) -> tuple[torch.device, Plan]:
    device = check_support(job)
    if job.torch_threads:
        torch.set_num_threads(job.torch_threads)
    return device, told_lengths(job.plan(job.seed + number * TRIAL_SEED_STRIDE), prepared)


def _delivered(job: Job, prepared: Prepared, device: torch.device) -> Consumer:
    """From a host batch to a whole one on the device."""
    place, finish = job.placement.to(device), job.collate.finish
    if isinstance(job.collate, Default):
        return place
    scale = prepared.dataset.uint8_scale
    return lambda batch: finish(place(batch), scale)


def _stepped(job: Job, prepared: Prepared, device: torch.device) -> Consumer:
    """From a host batch to what the step gets."""
    deliver, transform = _delivered(job, prepared, device), job.transform.of_a_batch
    if isinstance(job.transform, NoTransform) or job.transform.where == "worker":
        return deliver
    return lambda batch: transform(deliver(batch))


def _setup(job: Job, prepared: Prepared, seed: int, device: torch.device, epochs: Epochs) -> Setup:
    batch = next(iter(epochs(job.epochs)))
    return Setup(
        model=job.model,
        sample=leaves_of(_stepped(job, prepared, device)(batch)),
        num_classes=prepared.dataset.num_classes,
        learning_rate=job.learning_rate,
        seed=seed,
        device=device,
        unread=device.type == "cpu" and may_be_unread(batch),
    )


def _measure(
    job: Job, benchmark: Benchmark, prepared: Prepared, setup: Setup, loading: Opened
) -> Measured:
    """A warm-up epoch on a throwaway start, the bare window on a fresh one, the limit beside it."""
    place = _stepped(job, prepared, setup.device)
    consume, _ = benchmark.start(place, setup)
    drain(loading.epochs, consume, job.epochs, setup.device)
    consume, losses = benchmark.start(place, setup)
    cached_before, cached = bring_to(job.cache, prepared.files, loading)
    window = timed(loading.epochs, consume, job.epochs, setup.device)
    if benchmark.limit == "gather":
        rows, nbytes = prepared.num_samples, prepared.sample_nbytes
        limit = limit_rows_per_s(
            rows, nbytes, job.batch_size, setup.device, setup.unread, window.seconds
        )
    else:
        held = [place(batch) for batch in islice(loading.epochs(job.epochs), HELD_BATCHES)]
        limit = _replay_limit(benchmark, setup, held)
    return Measured(
        start_ns=window.start_ns,
        stop_ns=window.stop_ns,
        epochs=job.epochs,
        samples=num_delivered(prepared, told_lengths(job.plan(setup.seed), prepared), job.epochs),
        limit_samples_per_s=limit,
        losses=_epoch_means(losses, job.epochs),
        cached_before=cached_before,
        cached_fraction=cached,
    )


def _replay_limit(benchmark: Benchmark, setup: Setup, held: list[Tree]) -> float:
    """Samples a second of the same steps on whole batches that are on the device already."""
    size = len(optree.tree_leaves(held[0])[0])
    held = [batch for batch in held if len(optree.tree_leaves(batch)[0]) == size]
    consume, _ = benchmark.start(lambda batch: batch, setup)
    replayed(held, consume, len(held), setup.device)
    return size * REPLAYED_STEPS / replayed(held, consume, REPLAYED_STEPS, setup.device).seconds


def _epoch_means(losses: list[torch.Tensor], epochs: int) -> list[float]:
    return torch.stack(losses).view(epochs, -1).mean(dim=1).tolist() if losses else []
