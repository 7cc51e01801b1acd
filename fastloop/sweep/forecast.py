"""Describe the plan of a command and forecast its time, before torch is imported.

Only the composed configurations are known then, so the forecast assumes short epochs. After the
first round, fastloop/sweep/run_rounds.py computes the progress from the time that rounds take.

A trial has a timed window for each benchmark. The shadow of a job is a trial that runs again to
compare its data. A pass is a run of a job for an explanation, or an instrumented run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fastloop.core.auto_trials import AUTO, AUTO_SECONDS, LOOKS
from fastloop.core.number_text import show_about

START_S = 5.0
"""Seconds until the first trial begins, including imports."""
PROCESS_S = 0.15
"""Seconds to start the process of a trial."""
JOB_S = 0.7
"""Seconds for preparing the data of a job and comparing it, without the job's shadow."""
PASS_S, GPU_PASS_S = 0.6, 1.0
"""Seconds of a pass, without a GPU and with a GPU."""
WINDOW_SHARE = 1.3
"""Time of a window and of the work around it, as a multiple of min_window_s. This work is the
warm-up, and a share of measuring the limits of the machine, which each round does."""
SPARE_S = 0.05
"""Additional seconds of each window."""
PASSES_ONCE = 12
"""Approximate number of passes that an explanation runs once."""
USUAL_RUNGS, GPU_RUNGS = 5, 1
"""Approximate number of rungs that each round of an explanation runs, and of further rungs on a
GPU, for the copy to the device. A rung is the job without some of its parts, see
explain/rungs.py."""
GPU_TRIES = 1
"""Number of further changes that an explanation tries on a GPU, for the copy to the device."""
FIRST_GPU = Path("/dev/nvidia0")
"""A file that exists if NVIDIA's driver has found a GPU."""


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """The settings of a job on which the time of its measurement depends.

    The values have not been checked yet. A wrong value is reported later, by a line that names it.
    """

    trials: object
    """The setting `trials`: a number, or `auto`."""
    num_benchmarks: int
    """Number of benchmarks; 0 if the setting is wrong."""
    window_s: float | None
    """Seconds that a window lasts if epochs are short; None if that is not known beforehand."""
    most_s: float
    """Seconds after which, with trials=auto, no round begins once the ranking has been tested."""

    @property
    def once_s(self) -> float:
        """Seconds of the parts of the job that do not depend on the number of its trials."""
        return JOB_S + self.num_benchmarks * PASS_S

    @property
    def seconds(self) -> float | None:
        """Seconds that the job takes if epochs are short; None if that is not known beforehand."""
        if not isinstance(self.trials, int) or self.window_s is None:
            return None
        trial_s = PROCESS_S + self.num_benchmarks * (WINDOW_SHARE * self.window_s + SPARE_S)
        # The shadow of a job takes as long as a trial.
        return self.once_s + (1 + self.trials) * trial_s


def plan_job(config: Mapping[str, Any]) -> PlannedJob:
    """The planned job with this configuration."""
    benchmark, window_s, seconds = config["benchmark"], config["min_window_s"], config["seconds"]
    return PlannedJob(
        trials=config["trials"],
        num_benchmarks=len(benchmark) if isinstance(benchmark, dict) else 0,
        window_s=window_s if isinstance(window_s, int | float) else None,
        most_s=seconds if isinstance(seconds, int | float) else AUTO_SECONDS,
    )


@cache
def print_once(line: str) -> None:
    """Print the line to stderr, unless this process has done so already."""
    print(line, file=sys.stderr, flush=True)


def describe_plan(configs: Sequence[Mapping[str, Any]]) -> str:
    """A line with the numbers of jobs, trials and benchmarks, and the time that they take.

    configs: the configuration of each job.
    """
    jobs = [plan_job(config) for config in configs]
    trials = " or ".join(sorted({str(job.trials) for job in jobs}))
    plan = f"{_count(len(jobs), 'job')} x {trials} trial{'' if trials == '1' else 's'}"
    sizes = {job.num_benchmarks for job in jobs}
    if len(sizes) == 1:
        plan += f", {_count(min(sizes), 'benchmark')}"
    if any(job.trials == AUTO for job in jobs):
        most = show_about(START_S + sum(job.once_s for job in jobs) + jobs[0].most_s)
        least = f"or twice that if {LOOKS[0]} rounds take longer" if len(jobs) > 1 else ""
        told = f"{plan}: as many as decide the ranking, at most about {most}"
        return ", ".join(filter(None, [told, least]))
    seconds = forecast_seconds(jobs)
    if seconds is None:
        return f"{plan}: the time that it takes is known after the first round"
    about = show_about(seconds)
    return f"{plan}: about {about} if epochs are short, better known after the first round"


def forecast_seconds(jobs: Sequence[PlannedJob]) -> float | None:
    """Seconds that the jobs take if epochs are short; None if that is not known beforehand."""
    total_s = START_S
    for job in jobs:
        if job.seconds is None:
            return None
        total_s += job.seconds
    return total_s


def describe_explanation(configs: Sequence[Mapping[str, Any]]) -> str:
    """A line on the explanation of the first configuration: the number of passes, and the time."""
    trials, tries, device = (configs[0][name] for name in ("trials", "try", "device"))
    # The values are not checked yet. A wrong value is reported later, by a line that names it.
    if not isinstance(trials, int) or not isinstance(tries, int):
        return "1 job is explained"
    passes = num_passes(trials, tries, device)
    about = show_about(START_S + (GPU_PASS_S if _is_gpu(device) else PASS_S) * passes)
    rounds = _count(trials, "round")
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
