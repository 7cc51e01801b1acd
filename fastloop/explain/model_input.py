"""The measurements from which the model of a loader predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastloop.core.parts import Part
from fastloop.explain.explained_job import ExplainedJob
from fastloop.explain.ladder import Round
from fastloop.explain.part_costs import PartCosts, share_of_loading
from fastloop.explain.predict import HandOff, Measured
from fastloop.explain.rung_passes import BatchTimes, merge_batches

# The median of three passes leaves out one in which starting processes took unusually long.
HAND_OFF_ROUNDS = 3


def time_single_batches(whole: ExplainedJob) -> tuple[BatchTimes, BatchTimes]:
    """Times of single batches without workers: with the job's threads, and with one thread, as
    workers have.

    Each is from two passes, which tell how much passes differ.
    """
    # In the order as is, single, single, as is: a machine that slows down steadily slows both
    # means alike.
    as_is, single = whole.without_workers(whole.job.torch_threads), whole.without_workers(1)
    first = as_is.time_batches()
    # The job has one thread already: two passes serve both.
    if first.torch_threads == 1:
        both = merge_batches(first, single.time_batches())
        return both, both
    passes = [single.time_batches() for _ in range(2)]
    return merge_batches(first, as_is.time_batches()), merge_batches(*passes)


def measure_hand_off(
    explained: ExplainedJob,
    workers: Sequence[int],
    ladder: Sequence[Round],
) -> dict[int, list[HandOff]]:
    """Times of the hand-off from these numbers of workers, in interleaved rounds.

    ladder: rounds with the hand-off from the job's own number of workers, which are used for it.
    """
    present = explained.job.loading.num_workers
    hand_off: dict[int, list[HandOff]] = {count: [] for count in workers if count}
    if present in hand_off and Part.HAND_OFF in ladder[0]:
        hand_off[present] = [(each[Part.HAND_OFF], each[Part.COPY]) for each in ladder]
    missing = [count for count, pairs in hand_off.items() if not pairs]
    for number in range(HAND_OFF_ROUNDS if missing else 0):
        ready = explained.time_rung(Part.COPY, number)
        for count in missing:
            through = explained.with_workers(count).time_rung(Part.HAND_OFF, number)
            hand_off[count].append((through, ready))
    return hand_off


def measure_for_model(
    explained: ExplainedJob,
    times: tuple[BatchTimes, BatchTimes],
    ladder: Round,
    hand_off: Mapping[int, Sequence[HandOff]],
    costs: PartCosts,
) -> Measured:
    """The model's input. ladder: a round of the job's ladder in which nothing overlaps."""
    as_is, single = times
    return Measured(
        batches=explained.whole_batches,
        as_is=as_is,
        single=single,
        hand_off=hand_off,
        kept=_share_without_samples(ladder),
        decode_share=share_of_loading(Part.DECODE, ladder),
        transform_share=share_of_loading(Part.TRANSFORM, ladder),
        decoders=costs.decoders,
        batch_transform_s=costs.batch_transform_s,
    )


def _share_without_samples(ladder: Round) -> float:
    """Share of loading that is left if samples come from a store: collate, and transform."""
    # The loader was not taken apart: nothing is known to go.
    if Part.COLLATE not in ladder:
        return 1.0
    below = ladder[Part.TRANSFORM] if Part.TRANSFORM in ladder else ladder[Part.COLLATE]
    load_s = list(ladder.values())[-1].seconds - ladder[Part.COPY].seconds
    kept_s = below.seconds - ladder[Part.COPY].seconds
    return min(1.0, max(0.0, kept_s / load_s)) if load_s > 0 else 1.0
