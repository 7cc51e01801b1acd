"""What torch.profiler sees of a few steps: a trace for Perfetto, and a table of what takes longest.

A pass of its own, after all trials: under the profiler every operation costs more, so that none of
these times can be compared with a trial's.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from fastloop.environment import cpu_seconds, own_cpu_seconds
from fastloop.files import written_beside
from fastloop.spans import synchronize
from fastloop.types import Epochs, Tree

PROFILED_STEPS = 20
ROWS = 30
END = object()


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What was seen."""

    seen: profile
    steps: int
    cpu_s: float
    """User and system time of this process, the profiler's included."""
    workers_cpu_s: float
    """Of its children, which the trace does not show."""
    sort_by: str


def marked(name: str, function: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """The function, its calls named so in the trace."""

    def call(batch: Tree) -> Tree:
        with record_function(name):
            return function(batch)

    return call


def profiled(epochs: Epochs, consume: Callable[[Tree], Any], device: torch.device) -> Profile:
    """The first steps of epoch 0, "wait" and "step" named in them; fewer where it is shorter.

    The operations of all threads, of one that loads ahead too, as far as torch (2.7) can.
    """
    activities, sort_by = [ProfilerActivity.CPU], "self_cpu_time_total"
    if device.type == "cuda":
        activities, sort_by = [*activities, ProfilerActivity.CUDA], "self_device_time_total"
    else:  # else a CUDA build of torch tells the user, as an error, that no GPU is here
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    own, every, steps = own_cpu_seconds(), cpu_seconds(), 0
    threads = _all_threads()
    with profile(activities=activities, acc_events=True, experimental_config=threads) as seen:
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
    own, every = own_cpu_seconds() - own, cpu_seconds() - every
    return Profile(
        seen=seen, steps=steps, cpu_s=own, workers_cpu_s=max(0.0, every - own), sort_by=sort_by
    )


def _all_threads() -> Any:
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:  # of an older torch
        return None


def profile_paths(folder: Path, name: str) -> tuple[Path, Path]:
    """Where the trace and the table of that benchmark are."""
    return folder / f"profile-{name}.json.gz", folder / f"profile-{name}.txt"


def write_profile(one: Profile, folder: Path, name: str) -> None:
    """Write a gzipped Chrome trace, as ui.perfetto.dev opens it, and the table as text."""
    trace, table = profile_paths(folder, name)
    with written_beside(trace) as beside:
        one.seen.export_chrome_trace(str(beside))
        beside.write_bytes(gzip.compress(beside.read_bytes()))
    with written_beside(table) as beside:
        beside.write_text(_table(one, name))


def _table(one: Profile, name: str) -> str:
    totals = one.seen.key_averages().table(sort_by=one.sort_by, row_limit=ROWS)
    return (
        f"{name}: {one.steps} steps under torch.profiler, which makes all of it slower: these are\n"
        f"shares, and no times to compare with the trials'.\n"
        f"CPU time of this process {one.cpu_s:.3f} s, of its workers {one.workers_cpu_s:.3f} s; "
        f"the workers are in no row.\n\n{totals}"
    )
