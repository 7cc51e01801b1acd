"""Describe the plan of a command and forecast its time, before torch is imported.

The forecast uses only the composed configuration, and assumes that epochs are short. After the
first round, the sweep computes its progress from the time that its rounds have taken.

A round has one trial of each job, a trial one window of each benchmark, and a window the timed
epochs. The shadow of a job is a trial that runs again to compare its data. A pass is a run of a job
for an explanation, or an instrumented one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fastloop.core.auto_trials import AUTO, AUTO_SECONDS, LOOKS
from fastloop.core.number_text import show_about

START_S, LAUNCHED_S = 5.0, 0.15
"""Seconds until the first trial begins, including imports; and seconds to start a trial's
process."""
JOB_S, PASS_S = 0.7, 0.6
"""Seconds for preparing and comparing the data of a job, without its shadow; and seconds of a
pass."""
WINDOW_SHARE = 1.3
"""Time of a window as a multiple of min_window_s. The time includes the warm-up, and a share of the
time in which each round measures the limits of the machine."""
SPARE_S = 0.05
"""Additional seconds of each window."""
PASSES_ONCE, USUAL_RUNGS = 12, 5
"""Approximate number of passes that an explanation runs once, and of rungs that it runs in each
round. A rung is the job without some of its parts, see explain/rungs.py."""
GPU_RUNGS, GPU_TRIES, GPU_PASS_S = 1, 1, 1.0
"""On a GPU: number of additional rungs, and of additional changes to try, for the copy to the
device; and seconds of a pass."""
FIRST_GPU = Path("/dev/nvidia0")
"""A file that exists if NVIDIA's driver has found a GPU."""


@cache
def print_once(line: str) -> None:
    """Print the line to stderr, unless this process has done so already."""
    print(line, file=sys.stderr, flush=True)


def describe_plan(jobs: Sequence[Mapping[str, Any]]) -> str:
    """A line with the numbers of jobs, trials and benchmarks, and the time that they take.

    The time holds if no window lasts longer than min_window_s. jobs: the configuration of each job.
    """
    trials = " or ".join(sorted({str(job["trials"]) for job in jobs}))
    sizes = {len(_benchmarks(job)) for job in jobs}
    plan = f"{_count(len(jobs), 'job')} x {trials} trial{'' if trials == '1' else 's'}"
    if len(sizes) == 1:
        plan += f", {_count(min(sizes), 'benchmark')}"
    if any(job["trials"] == AUTO for job in jobs):
        most = show_about(START_S + sum(map(_once_s, jobs)) + _most_seconds(jobs[0]))
        least = f"or twice that if {LOOKS[0]} rounds take longer" if len(jobs) > 1 else ""
        told = f"{plan}: as many as decide the ranking, at most about {most}"
        return ", ".join(filter(None, [told, least]))
    seconds = forecast_seconds(jobs)
    if seconds is None:
        return f"{plan}: the time that it takes is known after the first round"
    about = show_about(seconds)
    return f"{plan}: about {about} if epochs are short, better known after the first round"


def describe_explanation(jobs: Sequence[Mapping[str, Any]]) -> str:
    """A line on the explanation of the first configuration: the number of passes, and the time."""
    job = jobs[0]
    # The values are not checked yet. A wrong value is reported later, by a line that names it.
    if not isinstance(job["trials"], int) or not isinstance(job["try"], int):
        return "1 job is explained"
    passes = num_passes(job["trials"], job["try"], job["device"])
    pass_s = GPU_PASS_S if _is_gpu(job["device"]) else PASS_S
    about = show_about(START_S + pass_s * passes)
    rounds = _count(job["trials"], "round")
    return (
        f"1 job is explained in {rounds}, {passes} passes or so: about {about} if epochs are short"
    )


def num_passes(trials: int, tries: int, device: object) -> int:
    """Approximate number of passes that explaining a job takes.

    trials: number of rounds. tries: number of changes to try. device: the job's setting `device`.
    """
    further = GPU_RUNGS + (GPU_TRIES if tries else 0) if _is_gpu(device) else 0
    return PASSES_ONCE + trials * (USUAL_RUNGS + tries + 1 + further)


def _is_gpu(device: object) -> bool:
    """True if this setting selects a GPU, as far as that is known without torch."""
    return FIRST_GPU.exists() if device == "auto" else str(device) not in ("cpu", "None")


def forecast_seconds(jobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds that the jobs take if no window lasts longer than min_window_s.

    jobs: the configuration of each job. None if the number of trials or min_window_s is not known
    beforehand.
    """
    total_s = START_S
    for job in jobs:
        count = len(_benchmarks(job))
        if not isinstance(job["trials"], int) or not isinstance(job["min_window_s"], int | float):
            return None
        # The shadow of a job takes as long as a trial.
        trial_s = LAUNCHED_S + count * (WINDOW_SHARE * job["min_window_s"] + SPARE_S)
        total_s += _once_s(job) + (1 + job["trials"]) * trial_s
    return total_s


def _once_s(job: Mapping[str, Any]) -> float:
    """Seconds of the parts of a job that do not depend on the number of its trials."""
    return JOB_S + len(_benchmarks(job)) * PASS_S


def _most_seconds(job: Mapping[str, Any]) -> float:
    """Seconds after which, with trials=auto, no round begins once the ranking has been tested."""
    return job["seconds"] if isinstance(job["seconds"], int | float) else AUTO_SECONDS


def _benchmarks(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configurations of the job's benchmarks, by name; empty if the value is wrong."""
    benchmark = job["benchmark"]
    return benchmark if isinstance(benchmark, dict) else {}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
