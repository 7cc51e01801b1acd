"""Run the instrumented pass of a benchmark: an epoch that records the time of each part.

The pass also measures CPU time. It runs once after the trials, because recording takes time that no
trial may contain.
"""

from __future__ import annotations

import torch

from fastloop.core.benchmark import Session, runs_model
from fastloop.core.cgroup import usable_cores
from fastloop.core.device_time import StepMarks, synchronize
from fastloop.core.machine_counters import LEAST_SECONDS, cpu_seconds
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Attribution
from fastloop.core.spans import Spans, now_ns, seconds_between
from fastloop.core.types import Epochs
from fastloop.processes.rank_group import all_gather, local_world_size
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.page_cache import evict_on_all_ranks, set_cache_state
from fastloop.trial.training_limit import replay_batches, step_seconds
from fastloop.trial.window import Consumer, drain, num_repeats, time_instrumented_epoch


def run_instrumentation(job: Job, prepared: PreparedData, name: str) -> Attribution:
    """Run one epoch of the benchmark `name`; return the times of its parts and its CPU time.

    A warm-up epoch comes first. If the epoch is too short to measure CPU time, further epochs
    follow. With cache=cold the files are evicted from memory before the first batch of all, and
    again before the recorded epoch.
    """
    context = start_job(job, prepared, 0)
    device = context.device
    deliver = context.step_delivery()
    # Initializing the device takes seconds on CUDA, so it comes before the loader is timed.
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
        context.warm_up(session, deliver, loader.epochs)
        spans = Spans()
        steps = StepMarks(device)
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
    has_gpu_steps = device.type == "cuda" and runs_model(benchmark)
    return Attribution(
        seconds=window.seconds,
        first_batch_s=first_batch_s,
        wait_s=spans.seconds("wait"),
        place_s=spans.seconds("place"),
        idle_s=max(0.0, window.seconds - steps.seconds()) if has_gpu_steps else None,
        cpu_s=cpu_s,
        cpu_window_s=cpu_window_s,
        usable_cores=usable_cores() / local_world_size(),
        runs_model=runs_model(benchmark),
        step_s=step_s,
        local_step_s=local_step_s,
    )


def _repeat_for_cpu_time(
    context: JobContext, session: Session, deliver: Consumer, epochs: Epochs, begun_ns: int
) -> None:
    """Run further epochs until CPU time since begun_ns can be measured, after LEAST_SECONDS.

    These epochs record no parts. deliver: turns a batch into the input of the step. begun_ns: clock
    value in nanoseconds.
    """
    # With min_window_s=0 or cache=cold, trials do not repeat epochs, so this pass repeats none.
    if not context.job.shortest_window_s:
        return
    least_s = LEAST_SECONDS
    count = 1
    consume, _ = session.start(deliver)
    # The shortest time of all ranks (processes) counts, so that all ranks run the same number of
    # epochs.
    while (passed_s := min(all_gather(seconds_between(begun_ns, now_ns()), float))) < least_s:
        more = num_repeats(passed_s / count, least_s - passed_s)
        with context.join_uneven_ranks(session):
            for epoch in range(count, count + more):
                drain(epochs, consume, epoch, context.device)
        count += more


def _first_batch_seconds(
    context: JobContext, deliver: Consumer, epochs: Epochs, opened_ns: int
) -> float:
    """Seconds from opening the loader, at opened_ns, until its first batch is on the device."""
    # The variable `batches` keeps the iterator alive until the clock has been read. Without it, the
    # workers would end first, which takes time.
    batches = iter(epochs(context.job.epochs))
    deliver(next(batches))
    synchronize(context.device)
    return seconds_between(opened_ns, now_ns())
