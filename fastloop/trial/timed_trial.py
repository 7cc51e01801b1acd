"""Run one timed trial of a job: a warm-up, a timed window, and the machine's limit, per benchmark.

Each trial has a fresh process, which calls `run_trial`. With several ranks, each rank calls it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastloop.core.benchmark import Session, Setup
from fastloop.core.limit import Limit
from fastloop.core.machine_counters import load_average
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import BenchmarkName, Calls, Measurement, Trial
from fastloop.core.spans import now_ns, seconds_between, wall_ms
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Tree
from fastloop.data.window_counts import check_counts, num_delivered
from fastloop.processes.rank_group import all_gather, world_size
from fastloop.trial.earlier_trials import NO_FINDINGS, EarlierFindings
from fastloop.trial.job import Job
from fastloop.trial.job_check import check_epoch
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.limits import loading_limit, loading_limit_key, replay_limit_key
from fastloop.trial.page_cache import set_cache_state, total_mib
from fastloop.trial.reopenable_loader import ReopenableLoader
from fastloop.trial.training_limit import (
    num_replay_steps,
    replay_batches,
    replay_limit,
)
from fastloop.trial.window import (
    Consumer,
    Window,
    num_repeats,
    row_counter,
    time_epochs,
)


def run_trial(
    job: Job,
    prepared: PreparedData,
    number: int,
    asked_ns: int,
    earlier: EarlierFindings = NO_FINDINGS,
) -> Trial:
    """Run one trial: warm up and time each benchmark, and count its batches.

    The first trial of a job also compares a whole epoch with the dataset before the windows, and
    another one after them. The first trial of a round that needs a limit measures it. With
    cache=cold the loader is reopened before each timed window.

    asked_ns: clock reading when this process was requested. earlier: findings of other trials, by
    default none. Raises Invalid if the loader does not deliver the dataset.
    """
    launch_s = seconds_between(asked_ns, now_ns())
    started_ms = wall_ms()
    load = load_average()
    context = start_job(job, prepared, number)
    with context.open_loader() as loader:
        # None: no trial of this job has compared its data with the dataset yet, so this one does.
        unread = earlier.may_be_unread
        compares = earlier.may_be_unread is None
        if unread is None:
            unread = check_epoch(context, loader.epochs, job.epochs + 1)
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
            check_epoch(context, loader.epochs, job.epochs + 2)
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
    """A batch of the loader, as an example of all batches."""
    setup: Setup
    earlier: EarlierFindings
    calls: Calls
    """The trial's calls of the loader, which its shadow repeats; each benchmark adds its own."""


def _measure(opened: _OpenJob, name: BenchmarkName) -> Measurement:
    """Measure one benchmark: warm up for an epoch, time a window, and measure the limit.

    If another job of the round has measured the limit of the same work, that limit is used.
    """
    context, loader = opened.context, opened.loader
    job, prepared, benchmark = context.job, context.prepared, context.job.benchmark[name]
    deliver = context.step_delivery()
    session = benchmark.session(opened.setup)
    context.warm_up(session, deliver, loader.epochs)
    timed = _time_windows(opened, name, session, deliver)
    window = timed.window
    repeats = opened.calls.windows[name][-1]
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
    """Measure the machine's limit for a benchmark, directly after its window.

    samples: number of samples that all ranks deliver in one repeat of the window's epochs. Returns
    None if nothing measures a limit for the loader's kind of work.
    """
    context, job = opened.context, opened.context.job
    window_s = max(all_gather(window.seconds, float))
    if job.benchmark[name].limit == "gather":
        return loading_limit(context, opened.setup.unread, window_s)
    opened.calls.replays.append(name)
    seconds = window_s / opened.calls.windows[name][-1]
    step_s = seconds * job.loading.batch_size * world_size() / samples
    steps = num_replay_steps(step_s, window_s)
    deliver = context.step_delivery()
    batches = replay_batches(opened.loader.epochs(job.epochs), deliver, steps)
    return replay_limit(session, batches, context.device, window_s)


@dataclass(frozen=True, kw_only=True)
class _TimedWindow:
    """A window, the losses of its steps, and the result of `set_cache_state` before it."""

    window: Window
    losses: list[torch.Tensor]
    """Losses of the steps, on the device."""
    cached: tuple[float | None, float | None]
    """Share of the files' pages in memory, before and after the change of the cache state."""


def _time_windows(
    opened: _OpenJob, name: BenchmarkName, session: Session, deliver: Consumer
) -> _TimedWindow:
    """Time the epochs, repeated as often as a window of min_window_s requires."""
    # An earlier trial of the job may have found the number of repeats. Otherwise a first window has
    # the epochs once. If a window is too short, a longer window follows, and the short window does
    # not count. There are at most two windows, so that noise can't prolong a trial.
    context, job, loader = opened.context, opened.context.job, opened.loader
    shortest_s = job.shortest_window_s
    tried = opened.calls.windows.setdefault(name, [])
    repeats = opened.earlier.repeats.get(name, 1)
    while True:
        tried.append(repeats)
        consume, losses = session.start(deliver)
        cached = set_cache_state(job.cache, context.prepared.files, loader)
        size_of = row_counter(opened.batch)
        with context.join_uneven_ranks(session):
            window = time_epochs(
                loader.epochs, consume, job.epochs * repeats, context.device, size_of
            )
        # The time of the slowest rank counts, so all ranks decide alike.
        seconds = max(all_gather(window.seconds, float))
        if seconds < shortest_s and len(tried) == 1:
            repeats = max(repeats, num_repeats(seconds / repeats, shortest_s))
        if repeats == tried[-1]:
            return _TimedWindow(window=window, losses=losses, cached=cached)


def _epoch_means(losses: list[torch.Tensor], epochs: int) -> list[float]:
    """The mean loss of each epoch; empty if the benchmark has no losses."""
    # tensor_split allows parts of unequal length: an epoch has one batch fewer if all samples of
    # that batch were broken.
    parts = torch.stack(losses).tensor_split(epochs) if losses else ()
    return [float(part.mean()) for part in parts]
