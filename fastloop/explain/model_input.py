"""The measurements from which the model of a loader predicts."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.explanation import Rung
from fastloop.explain.explained_job import ExplainedJob
from fastloop.explain.ladder import Round
from fastloop.explain.part_costs import PartCosts, share_of_loading
from fastloop.explain.passes import BatchTimes, merge_batches
from fastloop.explain.predict import Measured


def time_single_batches(whole: ExplainedJob) -> tuple[BatchTimes, BatchTimes]:
    """Times of single batches without workers: with the job's threads, and with one, as workers
    have. Each is of two passes, in opposite order, which tells how much passes differ."""
    as_is, single = whole.without_workers(whole.job.torch_threads), whole.without_workers(1)
    first = as_is.time_batches()
    if first.torch_threads == 1:
        both = merge_batches(first, single.time_batches())
        return both, both
    passes = [single.time_batches() for _ in range(2)]
    return merge_batches(first, as_is.time_batches()), merge_batches(*passes)


def measure_for_model(
    explained: ExplainedJob,
    times: tuple[BatchTimes, BatchTimes],
    ladder: Round,
    workers: Sequence[int],
    costs: PartCosts,
) -> Measured:
    """The model's input: single batches, and the hand-off from these numbers of workers.

    ladder: a round of the job in which nothing overlaps.
    """
    hand_off = {}
    if counts := sorted({*workers} - {0}):
        ready = explained.time_rung(Rung.COPY, 0)
        for count in counts:
            hand_off[count] = explained.with_workers(count).time_rung(Rung.HAND_OFF, 0), ready
    as_is, single = times
    return Measured(
        batches=explained.whole_batches,
        as_is=as_is,
        single=single,
        hand_off=hand_off,
        kept=_share_without_samples(ladder),
        decode_share=share_of_loading(Rung.DECODE, ladder),
        transform_share=share_of_loading(Rung.TRANSFORM, ladder),
        decoders=costs.decoders,
        batch_transform_s=costs.batch_transform_s,
    )


def _share_without_samples(ladder: Round) -> float:
    """Share of loading that is left where samples come from a store: collate, and transform."""
    if Rung.COLLATE not in ladder:
        return 1.0
    below = ladder[Rung.TRANSFORM] if Rung.TRANSFORM in ladder else ladder[Rung.COLLATE]
    load_s = list(ladder.values())[-1].seconds - ladder[Rung.COPY].seconds
    kept_s = below.seconds - ladder[Rung.COPY].seconds
    return min(1.0, max(0.0, kept_s / load_s)) if load_s > 0 else 1.0
