"""Caveats of a job's figures, one short line each, derived from raw values; no value is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.instrumented_pass import Attribution
from fastloop.core.limit import typical_origin
from fastloop.core.looks import fewest_trials
from fastloop.core.protocols import HasCaveat
from fastloop.core.result import Result, measurements
from fastloop.core.tracked_metrics import metrics
from fastloop.sweep.data_caveats import data_caveats
from fastloop.sweep.timing_caveats import trial_caveats, wait_caveats
from fastloop.trial.job import Job
from fastloop.trial.page_cache import COLD_FRACTION

ABOVE_LIMIT = 1.1
"""Share of the limit above which noise is no explanation: nothing does that work faster."""
CAUSES = {
    "rows": "its rows lie next to each other, or were gathered before",
    "converted rows": "its rows lie next to each other, or were converted before",
    "decoded images": "its images were decoded before, or by a decoder that was not measured",
    "cropped images": "its crops were made before, or by a decoder that was not measured",
    "copies": "its batches were copied before",
}
"""Kind of limit -> the reason why a loader can be above it."""


def caveats(result: Result, sweep: Sequence[Result]) -> list[str]:
    """Caveats of the job's figures, given the results of all jobs of its sweep."""
    if not result.trials:
        return []
    workers = int(result.params.get("num_workers") or 0)
    lines = crowd_caveats(
        num_workers=workers,
        torch_threads=result.trials[0].torch_threads,
        usable_cores=result.environment.get("cores_usable") or 1,
    )
    lines += [*cache_caveats(result), *data_caveats(result, sweep)]
    if left := [command for trial in result.trials for command in trial.left_running]:
        count = "1 process" if len(left) == 1 else f"{len(left)} processes"
        first = "" if len(left) == 1 else ", the first"
        lines.append(f"left running: {count}, ended after the trial{first}: {left[0]}")
    if "concurrent" in result.tags:
        lines.append("concurrent: other work may have run at the same time (allow_concurrent=true)")
    # trials=auto may stop early by itself.
    asked = fewest_trials(result.params.get("trials") or 0)
    if (count := len(result.trials)) < asked:
        lines.append(f"stopped early: {count} of {asked} trials (seconds=)")
    others = [other for other in sweep if other.trials and other is not result]
    if others and all(len(names) == 1 for names in result.rounds):
        lines.append("not interleaved: machine noise may have affected single jobs")
    # the machine may have changed between two sessions, and their trials are compared
    sessions = {trial.session_ms for other in sweep for trial in other.trials}
    if len(sessions) > 1:
        lines.append(f"resumed: the sweep's trials were run in {len(sessions)} sessions")
    for name in result.trials[0].benchmarks:
        seconds = [measurement.seconds for measurement in measurements(result, name)]
        lines += [f"{name}: {line}" for line in trial_caveats(seconds=seconds)]
        losses = [measurement.losses for measurement in measurements(result, name)]
        lines += [f"{name}: {line}" for line in loss_caveats(losses)]
    lines += limit_caveats(result)
    for name, attribution in result.attribution.items():
        waits = wait_caveats(wait_s=_waits_of_first_rank(attribution), num_workers=workers)
        lines += [f"{name}: {line}" for line in waits]
    return lines


def option_caveats(job: Job, sample_nbytes: int) -> list[str]:
    """Caveats that the job's options declare for samples of that size."""
    runs_model = any(benchmark.limit == "replay" for benchmark in job.benchmark.values())
    options = (job.collate, job.model) if runs_model else (job.collate,)
    texts = [option.caveat(sample_nbytes) for option in options if isinstance(option, HasCaveat)]
    return [text for text in texts if text]


def cache_caveats(result: Result) -> list[str]:
    """Caveats of a job with `cache=cold`; empty for other jobs."""
    if result.params.get("cache") != "cold" or not result.trials:
        return []
    return [line for line in (_not_cold(result), _rereads_memory(result)) if line]


def limit_caveats(result: Result) -> list[str]:
    """A caveat for each benchmark without a model that is faster than the limit of loading."""
    figures = metrics(result)
    lines = []
    for name, attribution in result.attribution.items():
        fraction = figures.get(f"{name}/limit_fraction") or 0
        if fraction > ABOVE_LIMIT and not attribution.runs_model:
            origins = [measured.limit_origin for measured in measurements(result, name)]
            origin = typical_origin(origins)
            cause = CAUSES[origin.kind if origin else "rows"]
            lines.append(f"{name}: above the limit: {stats.percent(fraction)} %, as {cause}")
    return lines


def loss_caveats(losses: Sequence[Sequence[float]]) -> list[str]:
    """A caveat if a loss is no finite number; losses: means of the epochs of each trial."""
    if all(math.isfinite(loss) for trial in losses for loss in trial):
        return []
    return ["loss is not finite: learning_rate is too high, or samples hold NaN or infinity"]


def crowd_caveats(*, num_workers: int, torch_threads: int, usable_cores: int) -> list[str]:
    """A caveat if there are more workers, or more of torch's threads, than cores."""
    crowds = []
    if num_workers > usable_cores:
        crowds += [f"{num_workers} workers"]
    if torch_threads > usable_cores:
        crowds += [f"{torch_threads} torch threads"]
    if not crowds:
        return []
    cores = "1 core" if usable_cores == 1 else f"{usable_cores} cores"
    return [f"CPU oversubscribed: {' and '.join(crowds)} on {cores}"]


def _waits_of_first_rank(attribution: Attribution) -> list[float]:
    """The waits of rank 0."""
    # wait_s holds the waits of all ranks one after the other; each rank has its own workers
    ranks = attribution.ranks
    return attribution.wait_s[: ranks[0].batches] if ranks else attribution.wait_s


def _not_cold(result: Result) -> str:
    fractions = [
        measurement.cached_fraction
        for trial in result.trials
        for measurement in trial.benchmarks.values()
    ]
    known = [fraction for fraction in fractions if fraction is not None]
    # Without mincore(2), or for files of which it does not tell.
    if not known:
        return "asked for a cold cache, but the system does not report whether it was"
    worst = max(known)
    return f"asked for a cold cache, {worst:.0%} was cached" if worst > COLD_FRACTION else ""


def _rereads_memory(result: Result) -> str:
    memory_gib, data_mib = result.environment.get("memory_gib"), result.trials[0].data_mib
    # With data larger than memory, an epoch evicts its own first pages: the next one reads the disk
    # again. Smaller data is in the page cache after the first epoch.
    if result.params.get("epochs") == 1 or not memory_gib or data_mib is None:
        return ""
    if data_mib >= 1024 * memory_gib:
        return ""
    sizes = f"the data ({data_mib:,.1f} MiB) is smaller than memory ({memory_gib:.0f} GiB)"
    return f"{sizes}: at most the first epoch of each window reads the disk"
