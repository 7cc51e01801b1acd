"""The work of one process: a timed trial, an instrumented pass or a profiled pass of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.instrumented_pass import Attribution
from fastloop.core.machine import cpu_seconds, load_average
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.plan import Benchmark, PreparedData, Session, Setup
from fastloop.core.result import Measurement, Trial
from fastloop.core.spans import Spans, StepMarks, now_ns, seconds_between, synchronize, wall_ms
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.data.batch_counts import check_counts
from fastloop.data.same_data import num_delivered
from fastloop.processes.rank_group import all_gather, local_world_size, rank, world_size
from fastloop.timeline.event_log import open_log
from fastloop.timeline.lanes import build_lanes
from fastloop.timeline.loop import watch_epochs
from fastloop.trial.context import JobContext, start_job
from fastloop.trial.job import Job
from fastloop.trial.limits import loading_limit
from fastloop.trial.page_cache import (
    ReopenableLoader,
    evict_on_all_ranks,
    set_cache_state,
    total_mib,
)
from fastloop.trial.profiling import annotate, profile_steps, write_profile
from fastloop.trial.replay import (
    num_replay_steps,
    replay_batches,
    replay_limit,
    step_seconds,
)
from fastloop.trial.window import (
    Consumer,
    Window,
    drain,
    num_repeats,
    row_counter,
    time_epochs,
    time_instrumented_epoch,
)


def run_trial(job: Job, prepared: PreparedData, number: int, asked_ns: int) -> Trial:
    """Run one trial: check the data, warm up and time each benchmark, and check the data again.

    With cache=cold the loader is opened anew before each timed window.

    asked_ns: clock reading when this process was requested. Raises Invalid if the loader does not
    deliver the dataset.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms, load = wall_ms(), load_average()
    context = start_job(job, prepared, number)
    with context.open_loader() as loader:
        unread = context.check_epoch(loader.epochs, job.epochs + 1)
        batch = context.first_batch(loader.epochs)
        setup, count_rows = context.build_setup(batch, unread), row_counter(batch)
        benchmarks = {
            name: _measure(context, benchmark, setup, loader, count_rows)
            for name, benchmark in job.benchmark.items()
        }
        context.check_epoch(loader.epochs, job.epochs + 2)
    return Trial(
        number=number,
        seed=context.plan.seed,
        benchmarks=benchmarks,
        torch_threads=torch.get_num_threads(),
        multiprocessing_context=context.plan.loading.multiprocessing_context,
        load_average=load,
        launch_s=launch_s,
        started_ms=started_ms,
        data_mib=total_mib(prepared.files) if prepared.files else None,
    )


def _measure(
    context: JobContext,
    benchmark: Benchmark,
    setup: Setup,
    loader: ReopenableLoader,
    count_rows: Callable[[Tree], int],
) -> Measurement:
    """Warm up for an epoch, start the benchmark anew, time its window, then measure its limit."""
    job, prepared, device = context.job, context.prepared, context.device
    deliver = context.step_delivery()
    session = benchmark.session(setup)
    _warm_up(context, session, deliver, loader.epochs)
    timed = _time_window(context, session, deliver, loader, count_rows)
    window, repeats = timed.window, timed.repeats
    own_batches = not traits_of(LoaderTraits, job.loader).honours_batch_size
    check_counts(prepared, context.plan, window.sizes, own_batches)
    seconds = max(all_gather(window.seconds)) / repeats
    samples = num_delivered(prepared, context.plan, job.epochs)
    if benchmark.limit == "gather":
        limit = loading_limit(context, setup.unread, seconds * repeats)
    else:
        step_s = seconds * job.loading.batch_size * world_size() / samples
        window_s = seconds * repeats
        steps = num_replay_steps(step_s, window_s)
        batches = replay_batches(loader.epochs(job.epochs), deliver, steps)
        limit = replay_limit(session, batches, device, window_s)
    return Measurement(
        start_ns=window.start_ns,
        stop_ns=window.stop_ns,
        epochs=job.epochs,
        repeats=repeats,
        samples=samples,
        limit_samples_per_s=limit.samples_per_s if limit else None,
        limit_origin=limit.origin if limit else None,
        losses=_epoch_means(timed.losses, job.epochs * repeats)[: job.epochs],
        cached_before=timed.cached[0],
        cached_fraction=timed.cached[1],
    )


@dataclass(frozen=True, kw_only=True)
class _TimedWindow:
    window: Window
    repeats: int
    losses: list[torch.Tensor]
    cached: tuple[float | None, float | None]


def _time_window(
    context: JobContext,
    session: Session,
    deliver: Consumer,
    loader: ReopenableLoader,
    count_rows: Callable[[Tree], int],
    repeats: int = 1,
) -> _TimedWindow:
    """Time the epochs `repeats` times over; as often as min_window_s needs if once is too short."""
    job = context.job
    consume, losses = session.start(deliver)
    cached = set_cache_state(job.cache, context.prepared.files, loader)
    with context.join_uneven_ranks(session):
        window = time_epochs(
            loader.epochs, consume, job.epochs * repeats, context.device, count_rows
        )
    needed = num_repeats(max(all_gather(window.seconds)), job.shortest_window_s)
    if repeats == 1 and needed > 1:
        return _time_window(context, session, deliver, loader, count_rows, needed)
    return _TimedWindow(window=window, repeats=repeats, losses=losses, cached=cached)


def _warm_up(context: JobContext, session: Session, deliver: Consumer, epochs: Epochs) -> None:
    """Consume one epoch with a start of the session that is then discarded."""
    consume, _ = session.start(deliver)
    with context.join_uneven_ranks(session):
        drain(epochs, consume, context.job.epochs, context.device)


def _epoch_means(losses: list[torch.Tensor], epochs: int) -> list[float]:
    # tensor_split, not view: an epoch lacks a batch if all samples of that batch were broken.
    parts = torch.stack(losses).tensor_split(epochs) if losses else ()
    return [float(part.mean()) for part in parts]


def run_instrumentation(job: Job, prepared: PreparedData, name: str) -> Attribution:
    """Run one epoch of a benchmark with spans: where its time goes, and its CPU time.

    A short epoch is repeated for the CPU time. The epoch is warm; with cache=cold it is cold, and
    so is the first batch.
    """
    context = start_job(job, prepared, 0)
    device, deliver = context.device, context.step_delivery()
    torch.zeros(1, device=device)  # initializes the device before the loader is timed
    synchronize(device)
    if job.cache == "cold":
        evict_on_all_ranks(prepared.files)
    opened_ns = now_ns()
    with context.open_loader() as loader:
        first_batch_s = _first_batch_seconds(context, deliver, loader.epochs, opened_ns)
        setup = context.build_setup(context.first_batch(loader.epochs))
        benchmark = job.benchmark[name]
        session = benchmark.session(setup)
        _warm_up(context, session, deliver, loader.epochs)
        spans, steps = Spans(), StepMarks(device)
        consume, _ = session.start(steps.mark_start_after(spans.time_calls("place", deliver)))
        set_cache_state(job.cache, prepared.files, loader)
        cpu_before_s, begun_ns = cpu_seconds(), now_ns()
        with context.join_uneven_ranks(session):
            window = time_instrumented_epoch(
                loader.epochs, steps.mark_stop_after(consume), spans, device
            )
        _repeat_for_cpu_time(context, session, deliver, loader.epochs, begun_ns)
        cpu_s, cpu_window_s = cpu_seconds() - cpu_before_s, seconds_between(begun_ns, now_ns())
        step_s, local_step_s = None, None
        if session.ddp is not None:
            batches = replay_batches(loader.epochs(job.epochs), deliver)
            step_s, local_step_s = step_seconds(session, session.ddp, batches, device)
    runs_model = benchmark.limit == "replay"
    has_gpu_steps = device.type == "cuda" and runs_model
    return Attribution(
        seconds=window.seconds,
        first_batch_s=first_batch_s,
        wait_s=spans.seconds("wait"),
        place_s=spans.seconds("place"),
        idle_s=max(0.0, window.seconds - steps.seconds()) if has_gpu_steps else None,
        cpu_s=cpu_s,
        cpu_window_s=cpu_window_s,
        usable_cores=usable_cores() / local_world_size(),
        runs_model=runs_model,
        step_s=step_s,
        local_step_s=local_step_s,
    )


def _repeat_for_cpu_time(
    context: JobContext, session: Session, deliver: Consumer, epochs: Epochs, begun_ns: int
) -> None:
    """Consume further epochs, bare, until the time since that clock reading is enough for a figure
    of CPU time.

    Like windows, epochs are not repeated with min_window_s=0 and cache=cold.
    """
    least_s = LEAST_SECONDS if context.job.shortest_window_s else 0.0
    consume, _ = session.start(deliver)
    count = 1
    # the ranks read each other's clocks, so that all of them consume as many epochs
    while (passed_s := min(all_gather(seconds_between(begun_ns, now_ns())))) < least_s:
        more = num_repeats(passed_s / count, least_s - passed_s)
        with context.join_uneven_ranks(session):
            for epoch in range(count, count + more):
                drain(epochs, consume, epoch, context.device)
        count += more


def _first_batch_seconds(
    context: JobContext, deliver: Consumer, epochs: Epochs, opened_ns: int
) -> float:
    """Seconds from opening the loader until its first batch is delivered.

    The started epoch ends on return, after the clock was read: ending workers takes time.
    """
    batches = iter(epochs(context.job.epochs))
    deliver(next(batches))
    synchronize(context.device)
    return seconds_between(opened_ns, now_ns())


def run_profiling(job: Job, prepared: PreparedData, name: str, folder: Path) -> None:
    """Run a few steps of a benchmark under torch.profiler, and write its trace and table.

    Its times can't be compared with those of trials: the profiler slows everything down.
    """
    context = start_job(job, prepared, 0)
    deliver = context.step_delivery()
    with open_log() as log:
        with context.with_probe(log).open_loader() as loader:
            setup = context.build_setup(context.first_batch(loader.epochs))
            session = job.benchmark[name].session(setup)
            _warm_up(context, session, deliver, loader.epochs)
            consume, _ = session.start(annotate("place", deliver))
            begun_ns = now_ns()
            with context.join_uneven_ranks(session):
                epochs = watch_epochs(loader.epochs, log)
                profile = profile_steps(epochs, consume, context.device)
        events = [event for event in log.read() if event.start_ns >= begun_ns]
    if rank() == 0:
        write_profile(profile, folder, name, build_lanes(events))
