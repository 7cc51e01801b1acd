"""Profile a few steps by torch.profiler: a trace for Perfetto, and a table of the costliest
operations.

This is a separate pass after all trials: the profiler slows down every operation, so its times
can't be compared with those of a trial.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from fastloop.core.atomic_files import write_beside
from fastloop.core.device_time import synchronize
from fastloop.core.machine_counters import LEAST_SECONDS, cpu_seconds, process_cpu_seconds
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between, unix_offset_ns
from fastloop.core.types import Epochs, Tree
from fastloop.observe.chrome_trace import add_to_profile
from fastloop.observe.event_log import open_log
from fastloop.observe.job_probe import watch_epochs
from fastloop.observe.lanes import LaneRow, build_lane_rows, last_passes
from fastloop.processes.rank_group import rank
from fastloop.trial.job import Job
from fastloop.trial.job_start import start_job

PROFILED_STEPS = 20
"""Number of steps that are profiled."""
MAX_TABLE_ROWS = 30
END = object()
"""Marks the end of an epoch."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profiled steps and the CPU time that they took."""

    profiler: profile
    steps: int
    """Number of profiled steps."""
    seconds: float
    """Time of all steps, including their waits and the profiler's start and end."""
    cpu_s: float
    """User and system time of this process in seconds, including the profiler's."""
    workers_cpu_s: float
    """User and system time of child processes in seconds, which the trace does not show."""
    sort_by: str
    """The profiler's name of the column by which the table is sorted."""


def annotate(name: str, function: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """The function with its calls labelled `name` in the trace."""

    def call(batch: Tree) -> Tree:
        with record_function(name):
            return function(batch)

    return call


def profile_steps(epochs: Epochs, consume: Callable[[Tree], Any], device: torch.device) -> Profile:
    """Profile the first PROFILED_STEPS steps of epoch 0.

    The trace labels each wait for a batch "wait" and each step "step". With torch 2.7 or newer it
    has the operations of all threads, such as a prefetching thread.
    """
    activities, sort_by = [ProfilerActivity.CPU], "self_cpu_time_total"
    if device.type == "cuda":
        activities, sort_by = [*activities, ProfilerActivity.CUDA], "self_device_time_total"
    # Without a GPU, a CUDA build of torch logs an error.
    else:
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    before_s, all_before_s, steps = process_cpu_seconds(), cpu_seconds(), 0
    begun_ns = now_ns()
    config = _all_threads_config()
    with profile(activities=activities, acc_events=True, experimental_config=config) as profiler:
        with record_function("wait"):
            batches = iter(epochs(0))
        while steps < PROFILED_STEPS:
            with record_function("wait"):
                batch = next(batches, END)
            if batch is END:
                break
            with record_function("step"):
                consume(batch)
            steps += 1
        synchronize(device)
    cpu_s, all_cpu_s = process_cpu_seconds() - before_s, cpu_seconds() - all_before_s
    return Profile(
        profiler=profiler,
        steps=steps,
        seconds=seconds_between(begun_ns, now_ns()),
        cpu_s=cpu_s,
        workers_cpu_s=max(0.0, all_cpu_s - cpu_s),
        sort_by=sort_by,
    )


def _all_threads_config() -> Any:
    """The setting that profiles all threads; None with an older torch."""
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    # torch before 2.7 has no such setting.
    except TypeError:
        return None


def profile_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Paths of a benchmark's trace and table."""
    return folder / f"profile-{name}.json.gz", folder / f"profile-{name}.txt"


def write_profile(result: Profile, folder: Path, name: str, rows: Sequence[LaneRow]) -> None:
    """Write a gzipped Chrome trace, which ui.perfetto.dev opens, and the table as text.

    rows: the rows of the loop and its workers, which are added to the trace.
    """
    trace, table = profile_paths(folder, name)
    with write_beside(trace) as beside:
        result.profiler.export_chrome_trace(str(beside))
        text = add_to_profile(beside.read_text(encoding="utf-8"), rows, unix_offset_ns())
        beside.write_bytes(gzip.compress(text.encode()))
    with write_beside(table) as beside:
        beside.write_text(_format_table(result, name), encoding="utf-8")


def run_profiling(job: Job, prepared: PreparedData, name: str, folder: Path) -> None:
    """Run a few steps of a benchmark under torch.profiler, and write its trace and table."""
    context = start_job(job, prepared, 0)
    deliver = context.step_delivery()
    with open_log() as log:
        with context.with_probe(log).open_loader() as loader:
            setup = context.build_setup(context.first_batch(loader.epochs))
            session = job.benchmark[name].session(setup)
            context.warm_up(session, deliver, loader.epochs)
            consume, _ = session.start(annotate("place", deliver))
            begun_ns = now_ns()
            with context.join_uneven_ranks(session):
                epochs = watch_epochs(loader.epochs, log)
                profile = profile_steps(epochs, consume, context.device)
        events = last_passes(event for event in log.read() if event.start_ns >= begun_ns)
    if rank() == 0:
        write_profile(profile, folder, name, build_lane_rows(events))


def _format_table(result: Profile, name: str) -> str:
    """A legend, the CPU time, and the table of the costliest operations."""
    totals = result.profiler.key_averages().table(sort_by=result.sort_by, row_limit=MAX_TABLE_ROWS)
    cpu_time = (
        f"CPU time of this process {result.cpu_s:.3f} s, of its workers "
        f"{result.workers_cpu_s:.3f} s; the table does not include the workers."
    )
    if result.seconds < LEAST_SECONDS:
        cpu_time = f"These steps took less than {LEAST_SECONDS} s, too little to measure CPU time."
    return (
        f"{name}: {result.steps} steps under torch.profiler. The profiler slows everything down:\n"
        f"compare shares, not these times with those of the trials.\n"
        f"{cpu_time}\n\n{totals}"
    )
