"""Merging of the measurements of a job's ranks into one trial and one instrumented pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastloop.core import stats
from fastloop.core.limit import merge_origins
from fastloop.core.protocols import RankAnswer
from fastloop.core.result import Attribution, Measurement, RankPass, Resources, Shadow, Trial


def merge_trials(ranks: Sequence[Trial]) -> Trial:
    """The trial that these ranks ran together; it took as long as its slowest rank."""
    if len(ranks) == 1:
        return ranks[0]
    benchmarks = {
        name: _merge_measurements([trial.benchmarks[name] for trial in ranks])
        for name in ranks[0].benchmarks
    }
    threads = [trial.torch_threads for trial in ranks]
    unread = any(trial.calls.unread for trial in ranks if trial.calls)
    calls = ranks[0].calls and replace(ranks[0].calls, unread=unread)
    return replace(ranks[0], benchmarks=benchmarks, rank_torch_threads=threads, calls=calls)


def merge_passes(ranks: Sequence[RankAnswer]) -> Attribution:
    """The instrumented pass of these ranks: waits of all ranks, seconds of the slowest."""
    passes: list[Attribution] = [replace(rank.value, resources=rank.resources) for rank in ranks]
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


def merge_shadows(ranks: Sequence[Shadow]) -> Shadow:
    """The shadow trial that these ranks ran together, with the means of their figures."""
    known = [shadow.shuffling for shadow in ranks if shadow.shuffling is not None]
    if len(known) < len(ranks) or len(ranks) == 1:
        return ranks[0]
    shuffling = replace(
        known[0],
        each_sample_once=all(rank.each_sample_once for rank in known),
        distance=stats.mean([rank.distance for rank in known]),
        neighbours_kept=stats.mean([rank.neighbours_kept for rank in known]),
    )
    return replace(ranks[0], shuffling=shuffling)


def _merge_measurements(ranks: Sequence[Measurement]) -> Measurement:
    # The trial took as long as its slowest rank. All ranks measure their limits at the same time,
    # so the limit of the job is their sum.
    losses = [measured.losses for measured in ranks if measured.losses]
    return replace(
        max(ranks, key=lambda measured: measured.seconds),
        cached_before=_largest([measured.cached_before for measured in ranks]),
        cached_fraction=_largest([measured.cached_fraction for measured in ranks]),
        limit_samples_per_s=_sum([measured.limit_samples_per_s for measured in ranks]),
        limit_origin=merge_origins([measured.limit_origin for measured in ranks]),
        losses=[stats.mean(list(epoch)) for epoch in zip(*losses, strict=True)],
        rank_seconds=[measured.seconds for measured in ranks],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the known values; None if there are none. So it is for the next two functions."""
    known = [value for value in values if value is not None]
    return stats.mean(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _sum_resources(ranks: Sequence[Resources]) -> Resources | None:
    """Resources of all ranks. The sum of their peaks is an upper bound, because the ranks need not
    reach their peaks at the same time."""
    if not ranks:
        return None
    names = ("peak_pss_mib", "peak_gpu_mib", "cpu_cores", "context_switches", "read_mib")
    by_rank = {name: [getattr(resources, name) for resources in ranks] for name in names}
    # A sum over some of the ranks would be too small, so that it is unknown if one value is.
    sums = {name: None if None in values else sum(values) for name, values in by_rank.items()}
    # The ranks of a node share /dev/shm, so each sees the same growth.
    shm = _largest([resources.peak_shm_mib for resources in ranks])
    return Resources(**sums, peak_shm_mib=shm, samples=min(rank.samples for rank in ranks))
