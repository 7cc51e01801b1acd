"""The work of one process: a timed trial, an instrumented pass or a profiled pass of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fastloop.core.cgroup import usable_cores
from fastloop.core.limit import Limit
from fastloop.core.machine import cpu_seconds, load_average
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.plan import PreparedData, Session, Setup
from fastloop.core.result import Attribution, BenchmarkName, Calls, Measurement, Trial
from fastloop.core.spans import Spans, StepMarks, now_ns, seconds_between, synchronize, wall_ms
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Epochs, Tree
from fastloop.data.same_data import check_counts, num_delivered
from fastloop.observe.event_log import open_log
from fastloop.observe.job_probe import watch_epochs
from fastloop.observe.lanes import build_lanes, last_passes
from fastloop.processes.rank_group import all_gather, local_world_size, rank, world_size
from fastloop.trial.earlier_trials import NOTHING, Earlier
from fastloop.trial.job import Job
from fastloop.trial.job_start import JobContext, start_job
from fastloop.trial.limits import loading_limit, loading_limit_key, replay_limit_key
from fastloop.trial.page_cache import (
    ReopenableLoader,
    evict_on_all_ranks,
    set_cache_state,
    total_mib,
)
from fastloop.trial.profiling import annotate, profile_steps, write_profile
from fastloop.trial.training_limit import (
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


def run_trial(
    job: Job, prepared: PreparedData, number: int, asked_ns: int, earlier: Earlier = NOTHING
) -> Trial:
    """Run one trial: warm up and time each benchmark, and count its batches.

    The first trial of a job also compares a whole epoch with the dataset before the windows, and
    another one after them. The first trial of a round that needs a limit measures it. With
    cache=cold the loader is opened anew before each timed window.

    asked_ns: clock reading when this process was requested. earlier: findings of other trials, by
    default none. Raises Invalid if the loader does not deliver the dataset.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms, load = wall_ms(), load_average()
    context = start_job(job, prepared, number)
    with context.open_loader() as loader:
        unread, compares = earlier.unread, earlier.unread is None
        if unread is None:
            unread = context.check_epoch(loader.epochs, job.epochs + 1)
        batch = context.first_batch(loader.epochs)
        opened = _OpenJob(
            context=context,
            loader=loader,
            batch=batch,
            setup=context.build_setup(batch, unread),
            earlier=earlier,
            calls=Calls(compares_data=compares, unread=unread),
        )
        benchmarks = {name: _measure(opened, name) for name in job.benchmark}
        if compares:
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
        calls=opened.calls,
    )


@dataclass(frozen=True, kw_only=True)
class _OpenJob:
    """A job with an open loader, for all benchmarks of a trial."""

    context: JobContext
    loader: ReopenableLoader
    batch: Tree
    """A batch of the loader."""
    setup: Setup
    earlier: Earlier
    calls: Calls
    """The calls of the trial; each benchmark adds its own."""


def _measure(opened: _OpenJob, name: BenchmarkName) -> Measurement:
    """Warm up for an epoch, start the benchmark anew, time its window, then measure its limit."""
    context, loader = opened.context, opened.loader
    job, prepared, benchmark = context.job, context.prepared, context.job.benchmark[name]
    deliver = context.step_delivery()
    session = benchmark.session(opened.setup)
    _warm_up(context, session, deliver, loader.epochs)
    timed = _time_windows(opened, name, session, deliver)
    window, repeats = timed.window, opened.calls.windows[name][-1]
    own_batches = not traits_of(LoaderTraits, job.loader).honours_batch_size
    check_counts(prepared, context.plan, window.sizes, own_batches=own_batches)
    samples = num_delivered(prepared, context.plan, job.epochs)
    key = (
        loading_limit_key(context, opened.setup.unread)
        if benchmark.limit == "gather"
        else replay_limit_key(context, name, deliver(opened.batch))
    )
    limit = opened.earlier.limits.get(key)
    if limit is None:
        limit = _measure_limit(opened, name, session, window, samples)
    return Measurement(
        start_ns=window.start_ns,
        stop_ns=window.stop_ns,
        epochs=job.epochs,
        repeats=repeats,
        samples=samples,
        limit_samples_per_s=limit.samples_per_s if limit else None,
        limit_origin=limit.origin if limit else None,
        limit_key=key if limit else "",
        losses=_epoch_means(timed.losses, job.epochs * repeats)[: job.epochs],
        cached_before=timed.cached[0],
        cached_fraction=timed.cached[1],
    )


def _measure_limit(
    opened: _OpenJob, name: BenchmarkName, session: Session, window: Window, samples: int
) -> Limit | None:
    """The limit next to a window; samples: number that one repeat of it delivered."""
    context, job = opened.context, opened.context.job
    window_s = max(all_gather(window.seconds, float))
    if job.benchmark[name].limit == "gather":
        return loading_limit(context, opened.setup.unread, window_s)
    opened.calls.replays.append(name)
    seconds = window_s / opened.calls.windows[name][-1]
    step_s = seconds * job.loading.batch_size * world_size() / samples
    steps, deliver = num_replay_steps(step_s, window_s), context.step_delivery()
    batches = replay_batches(opened.loader.epochs(job.epochs), deliver, steps)
    return replay_limit(session, batches, context.device, window_s)


@dataclass(frozen=True, kw_only=True)
class _TimedWindow:
    """A window, the losses of its steps, and the result of `set_cache_state` before it."""

    window: Window
    losses: list[torch.Tensor]
    cached: tuple[float | None, float | None]


def _time_windows(
    opened: _OpenJob, name: BenchmarkName, session: Session, deliver: Consumer
) -> _TimedWindow:
    """Time the epochs as many times as a window of min_window_s needs."""
    # If an earlier trial of the job has found the number of times, it is used. Otherwise a first
    # window has the epochs once. If that is too short, a longer window follows, and the first one
    # does not count. There are two windows at most, so that noise can't prolong a trial.
    context, job, loader = opened.context, opened.context.job, opened.loader
    shortest_s, tried = job.shortest_window_s, opened.calls.windows.setdefault(name, [])
    repeats = opened.earlier.repeats.get(name, 1)
    while True:
        tried.append(repeats)
        consume, losses = session.start(deliver)
        cached = set_cache_state(job.cache, context.prepared.files, loader)
        count_rows = row_counter(opened.batch)
        with context.join_uneven_ranks(session):
            window = time_epochs(
                loader.epochs, consume, job.epochs * repeats, context.device, count_rows
            )
        # The time of the slowest rank counts, so that all ranks decide alike.
        seconds = max(all_gather(window.seconds, float))
        if seconds < shortest_s and len(tried) == 1:
            repeats = max(repeats, num_repeats(seconds / repeats, shortest_s))
        if repeats == tried[-1]:
            return _TimedWindow(window=window, losses=losses, cached=cached)


def _warm_up(context: JobContext, session: Session, deliver: Consumer, epochs: Epochs) -> None:
    """Consume one epoch with a start of the session that is then discarded."""
    consume, _ = session.start(deliver)
    with context.join_uneven_ranks(session):
        drain(epochs, consume, context.job.epochs, context.device)


def _epoch_means(losses: list[torch.Tensor], epochs: int) -> list[float]:
    # tensor_split, not view: an epoch has a batch less if all samples of that batch were broken.
    parts = torch.stack(losses).tensor_split(epochs) if losses else ()
    return [float(part.mean()) for part in parts]


def run_instrumentation(job: Job, prepared: PreparedData, name: str) -> Attribution:
    """Run one epoch of a benchmark with spans, which show the parts of its time, and its CPU time.

    A short epoch is repeated for the CPU time. The epoch is warm; with cache=cold it is cold, and
    so is the first batch.
    """
    context = start_job(job, prepared, 0)
    device, deliver = context.device, context.step_delivery()
    # This initializes the device before the loader is timed; on CUDA it takes seconds.
    torch.zeros(1, device=device)
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
    """Consume further epochs, without spans, until enough time has passed since that clock reading
    to measure CPU time."""
    # With min_window_s=0 or cache=cold, windows do not repeat epochs either.
    if not context.job.shortest_window_s:
        return
    least_s, count = LEAST_SECONDS, 1
    consume, _ = session.start(deliver)
    # The least time of all ranks counts, so that all of them consume equally many epochs.
    while (passed_s := min(all_gather(seconds_between(begun_ns, now_ns()), float))) < least_s:
        more = num_repeats(passed_s / count, least_s - passed_s)
        with context.join_uneven_ranks(session):
            for epoch in range(count, count + more):
                drain(epochs, consume, epoch, context.device)
        count += more


def _first_batch_seconds(
    context: JobContext, deliver: Consumer, epochs: Epochs, opened_ns: int
) -> float:
    """Seconds from opening the loader until its first batch is delivered."""
    # `batches` lives until the return, after the clock was read: ending its workers takes time.
    batches = iter(epochs(context.job.epochs))
    deliver(next(batches))
    synchronize(context.device)
    return seconds_between(opened_ns, now_ns())


def run_profiling(job: Job, prepared: PreparedData, name: str, folder: Path) -> None:
    """Run a few steps of a benchmark under torch.profiler, and write its trace and table."""
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
        events = last_passes(event for event in log.read() if event.start_ns >= begun_ns)
    if rank() == 0:
        write_profile(profile, folder, name, build_lanes(events))
