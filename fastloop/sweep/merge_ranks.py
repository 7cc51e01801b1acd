"""Merge the ranks' trials, shadows and instrumented passes of a job into one of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastloop.core import stats
from fastloop.core.launcher import RankAnswer
from fastloop.core.limit import merge_origins
from fastloop.core.result import Attribution, Measurement, RankPass, Resources, Shadow, Trial


def merge_trials(trials: Sequence[Trial]) -> Trial:
    """Merge the trials of a job's ranks; the job's trial took as long as its slowest rank."""
    if len(trials) == 1:
        return trials[0]
    first = trials[0]
    benchmarks = {
        name: _merge_measurements([trial.benchmarks[name] for trial in trials])
        for name in first.benchmarks
    }
    threads = [trial.torch_threads for trial in trials]
    unread = any(trial.calls.unread for trial in trials if trial.calls)
    calls = first.calls and replace(first.calls, unread=unread)
    return replace(first, benchmarks=benchmarks, rank_torch_threads=threads, calls=calls)


def merge_passes(answers: Sequence[RankAnswer]) -> Attribution:
    """Merge the instrumented passes of a job's ranks.

    The result has the waits of all ranks, and the seconds of the slowest rank. answers: the answer
    of each rank, with its Attribution and its resources.
    """
    passes: list[Attribution] = [
        replace(answer.value, resources=answer.resources) for answer in answers
    ]
    if len(passes) == 1:
        return passes[0]
    return replace(
        passes[0],
        seconds=max(rank_pass.seconds for rank_pass in passes),
        first_batch_s=max(rank_pass.first_batch_s for rank_pass in passes),
        wait_s=[wait for rank_pass in passes for wait in rank_pass.wait_s],
        place_s=[place for rank_pass in passes for place in rank_pass.place_s],
        idle_s=_mean([rank_pass.idle_s for rank_pass in passes]),
        cpu_s=sum(rank_pass.cpu_s for rank_pass in passes),
        cpu_window_s=_largest([rank_pass.cpu_window_s for rank_pass in passes]),
        usable_cores=_sum([rank_pass.usable_cores for rank_pass in passes]),
        step_s=_largest([rank_pass.step_s for rank_pass in passes]),
        local_step_s=_largest([rank_pass.local_step_s for rank_pass in passes]),
        ranks=[
            RankPass(
                batches=len(rank_pass.wait_s),
                seconds=rank_pass.seconds,
                wait_s=sum(rank_pass.wait_s),
                place_s=sum(rank_pass.place_s),
                idle_s=rank_pass.idle_s,
            )
            for rank_pass in passes
        ],
        resources=_sum_resources(
            [rank_pass.resources for rank_pass in passes if rank_pass.resources]
        ),
    )


def merge_shadows(shadows: Sequence[Shadow]) -> Shadow:
    """Merge the shadows of a job's ranks, with the means of their shuffling figures.

    If the shuffling of a rank is unknown, the shadow of rank 0 is returned unchanged.
    """
    known = [shadow.shuffling for shadow in shadows if shadow.shuffling is not None]
    if len(known) < len(shadows) or len(shadows) == 1:
        return shadows[0]
    shuffling = replace(
        known[0],
        each_sample_once=all(each.each_sample_once for each in known),
        distance=stats.mean([each.distance for each in known]),
        neighbours_kept=stats.mean([each.neighbours_kept for each in known]),
    )
    return replace(shadows[0], shuffling=shuffling)


def _merge_measurements(measurements: Sequence[Measurement]) -> Measurement:
    """Merge the ranks' measurements of a benchmark."""
    # The trial took as long as its slowest rank. All ranks measure their limits at the same time,
    # so the limit of the job is their sum.
    losses = [each.losses for each in measurements if each.losses]
    return replace(
        max(measurements, key=lambda each: each.seconds),
        cached_before=_largest([each.cached_before for each in measurements]),
        cached_fraction=_largest([each.cached_fraction for each in measurements]),
        limit_samples_per_s=_sum([each.limit_samples_per_s for each in measurements]),
        limit_origin=merge_origins([each.limit_origin for each in measurements]),
        losses=[stats.mean(list(of_epoch)) for of_epoch in zip(*losses, strict=True)],
        rank_seconds=[each.seconds for each in measurements],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return stats.mean(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    """The sum of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    """The largest of the values that are not None; None if all are."""
    return max((value for value in values if value is not None), default=None)


def _sum_resources(resources: Sequence[Resources]) -> Resources | None:
    """The resources of the ranks together; None if no rank knows its own.

    The sum of peaks is an upper bound, because ranks need not reach their peaks at the same time.
    """
    if not resources:
        return None
    names = ("peak_pss_mib", "peak_gpu_mib", "cpu_cores", "context_switches", "read_mib")
    by_rank = {name: [getattr(each, name) for each in resources] for name in names}
    # A sum over only some of the ranks would be too small, so it is unknown if one value is.
    sums = {name: None if None in values else sum(values) for name, values in by_rank.items()}
    # The ranks of a node share /dev/shm, so each sees the same growth.
    shm = _largest([each.peak_shm_mib for each in resources])
    return Resources(**sums, peak_shm_mib=shm, samples=min(each.samples for each in resources))
