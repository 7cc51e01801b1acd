"""What all ranks of a job come to: one trial, one instrumented pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastloop import stats
from fastloop.resources import Resources
from fastloop.result import Attribution, Measured, RankPass, Trial


def one_trial(ranks: Sequence[Trial]) -> Trial:
    """The trial that these ranks have run together: as long as its slowest rank took."""
    if len(ranks) == 1:
        return ranks[0]
    found = {
        name: _slowest([one.benchmarks[name] for one in ranks]) for name in ranks[0].benchmarks
    }
    threads = [one.torch_threads for one in ranks]
    return replace(ranks[0], benchmarks=found, rank_torch_threads=threads)


def _slowest(ranks: Sequence[Measured]) -> Measured:
    losses = [one.losses for one in ranks if one.losses]
    return replace(
        max(ranks, key=lambda one: one.seconds),
        cached_before=_largest([one.cached_before for one in ranks]),
        cached_fraction=_largest([one.cached_fraction for one in ranks]),
        limit_samples_per_s=sum(one.limit_samples_per_s for one in ranks),
        losses=[stats.mean(list(epoch)) for epoch in zip(*losses, strict=True)],
        rank_seconds=[one.seconds for one in ranks],
    )


def one_pass(ranks: Sequence[tuple[Attribution, Resources | None]]) -> Attribution:
    """The instrumented pass of these ranks: everybody's waits, the slowest rank's seconds."""
    seen = [replace(one, resources=resources) for one, resources in ranks]
    if len(seen) == 1:
        return seen[0]
    return replace(
        seen[0],
        seconds=max(one.seconds for one in seen),
        first_batch_s=max(one.first_batch_s for one in seen),
        wait_s=[wait for one in seen for wait in one.wait_s],
        place_s=[place for one in seen for place in one.place_s],
        idle_s=_mean([one.idle_s for one in seen]),
        cpu_s=sum(one.cpu_s for one in seen),
        step_s=_largest([one.step_s for one in seen]),
        own_step_s=_largest([one.own_step_s for one in seen]),
        ranks=[
            RankPass(
                batches=len(one.wait_s),
                seconds=one.seconds,
                wait_s=sum(one.wait_s),
                place_s=sum(one.place_s),
                idle_s=one.idle_s,
            )
            for one in seen
        ],
        resources=_summed([one.resources for one in seen if one.resources]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return stats.mean(found) if found else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _summed(ranks: Sequence[Resources]) -> Resources | None:
    """Of all ranks together; a sum of peaks is more than the peak where these come one by one.

    /dev/shm is the node's, so that every rank has seen the same growth.
    """
    if not ranks:
        return None
    names = ("peak_pss_mib", "peak_gpu_mib", "cpu_cores", "context_switches", "read_mib")
    found = {name: [getattr(one, name) for one in ranks] for name in names}
    sums = {name: None if None in values else sum(values) for name, values in found.items()}
    shm = _largest([one.peak_shm_mib for one in ranks])
    return Resources(**sums, peak_shm_mib=shm, samples=min(one.samples for one in ranks))
