"""A job is one resolved configuration; run_trial is what is done with it."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable
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
from fastloop.digest import difference, digest, expected, nbytes_of
from fastloop.environment import cpu_seconds, load_average, resolve_device
from fastloop.page_cache import CAN_EVICT, evict, total_mib
from fastloop.prepared import reference_hashes
from fastloop.result import Attribution, Measured, Trial
from fastloop.spans import Spans, now_ns, seconds_between, synchronize, wall_ms
from fastloop.types import (
    Benchmark,
    Dataset,
    Epochs,
    Invalid,
    Loader,
    Model,
    OnDisk,
    Order,
    Placement,
    Plan,
    Prepared,
    Setup,
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
    return device


def run_trial(job: Job, prepared: Prepared, number: int, asked_ns: int) -> Trial:
    """One trial: open, check the data, warm up and time each benchmark, check the data again.

    With cache=cold the loader is opened afresh before each window.

    asked_ns: when this process was asked for. Raises Invalid where the data is not the dataset's.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms, load = wall_ms(), load_average()
    device, place, plan = _start(job, number)
    with opened(partial(job.loader.open, prepared, plan)) as loading:
        check_data(prepared, plan, map(place, loading.epochs(job.epochs + 1)), job.epochs + 1)
        setup = _setup(job, prepared, plan.seed, device, loading.epochs)
        benchmarks = {
            name: _measure(job, benchmark, prepared, setup, loading)
            for name, benchmark in job.benchmark.items()
        }
        check_data(prepared, plan, map(place, loading.epochs(job.epochs + 2)), job.epochs + 2)
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
    device, place, plan = _start(job, 0)
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


def check_data(prepared: Prepared, plan: Plan, batches: Iterable[Tree], epoch: int) -> None:
    """Raise Invalid unless these placed batches are the dataset's samples, each exactly once."""
    hashes, kept = reference_hashes(prepared), None
    if plan.drop_last:
        if prepared.num_samples < plan.batch_size:
            count = f"{prepared.num_samples} samples are less than batch_size={plan.batch_size}"
            raise Unsupported(f"drop_last=true: {count}")
        whole = prepared.num_samples - prepared.num_samples % plan.batch_size
        kept = plan.order.indices(prepared.num_samples, plan.seed, epoch)[:whole].numpy()
    wrong = difference(
        expected(hashes, prepared.sample, kept), digest(batches, prepared.dataset.uint8_scale)
    )
    if wrong:
        raise Invalid(wrong)


def _start(job: Job, number: int) -> tuple[torch.device, Consumer, Plan]:
    device = check_support(job)
    if job.torch_threads:
        torch.set_num_threads(job.torch_threads)
    plan = job.plan(job.seed + number * TRIAL_SEED_STRIDE)
    return device, job.placement.to(device), plan


def _setup(job: Job, prepared: Prepared, seed: int, device: torch.device, epochs: Epochs) -> Setup:
    return Setup(
        model=job.model,
        sample=prepared.sample,
        num_classes=prepared.dataset.num_classes,
        learning_rate=job.learning_rate,
        seed=seed,
        device=device,
        unread=device.type == "cpu" and may_be_unread(next(iter(epochs(job.epochs)))),
    )


def _measure(
    job: Job, benchmark: Benchmark, prepared: Prepared, setup: Setup, loading: Opened
) -> Measured:
    """A warm-up epoch on a throwaway start, the bare window on a fresh one, the limit beside it."""
    place = job.placement.to(setup.device)
    consume, _ = benchmark.start(place, setup)
    drain(loading.epochs, consume, job.epochs, setup.device)
    consume, losses = benchmark.start(place, setup)
    cached_before, cached = bring_to(job.cache, prepared.files, loading)
    window = timed(loading.epochs, consume, job.epochs, setup.device)
    num_samples = prepared.num_samples
    if job.drop_last:
        num_samples -= num_samples % job.batch_size
    if benchmark.limit == "gather":
        nbytes = nbytes_of(prepared.sample)
        limit = limit_rows_per_s(num_samples, nbytes, job.batch_size, setup.device, setup.unread)
    else:
        held = [place(batch) for batch in islice(loading.epochs(job.epochs), HELD_BATCHES)]
        limit = _replay_limit(benchmark, setup, held)
    return Measured(
        start_ns=window.start_ns,
        stop_ns=window.stop_ns,
        epochs=job.epochs,
        samples=job.epochs * num_samples,
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
