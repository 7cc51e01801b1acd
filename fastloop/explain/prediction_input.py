"""Measure the input of the model that predicts the gains of changes of a job.

The input is the times of single batches and of hand-offs, and the costs of other decoders and of
transforming whole batches. A hand-off is the way of a finished batch from a worker to the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import JobFailed, name_of
from fastloop.explain.batch_passes import BatchTimes, merge_batches
from fastloop.explain.explained_job import ExplainedJob
from fastloop.explain.image_decoding import reads_images
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.predict import HandOff, Measured
from fastloop.explain.proposed_changes import transforms_samples
from fastloop.explain.rung_passes import Round
from fastloop.trial.decode_limit import seconds_by_library
from fastloop.trial.job import Job

# The median of three passes ignores one pass in which starting processes took unusually long.
HAND_OFF_ROUNDS = 3
LEAST_QUICKER = 0.97
"""A decoder is worth trying if its time is at most this share of the present decoder's time."""


@dataclass(frozen=True, kw_only=True)
class PartCosts:
    """The costs of other ways to make batches; empty if the job has no such part."""

    decoders: dict[str, float] = field(default_factory=dict)
    """Name of a decoder -> its time for an image, relative to the present decoder's time. The
    decoders are quicker, and deliver the same pixels up to TOLERANCE of decoder_agreement.py."""
    batch_transform_s: float | None = None
    """Time to transform a whole batch on the device; None: there is no transform, or it takes no
    batch."""


def measure_parts(explained: ExplainedJob) -> PartCosts:
    """The costs of other decoders, and of transforming whole batches, for a job's loader.

    Empty if the loader is not built on torch's DataLoader: the parts of other loaders are not
    measured.
    """
    if not uses_dataloader(explained.job):
        return PartCosts()
    return PartCosts(
        decoders=_time_decoders(explained) if reads_images(explained.job) else {},
        batch_transform_s=_time_batch_transform(explained),
    )


def _time_decoders(explained: ExplainedJob) -> dict[str, float]:
    explained.begin_step("comparing decoders")
    seconds = explained.launcher.call(
        decoder_seconds,
        explained.job,
        explained.prepared,
        timeout_s=explained.job.trial_timeout_s,
    )
    own_s = seconds.pop(name_of(getattr(explained.job.dataset, "decoder", None)), None)
    # No decoder can be timed if the samples' files are unknown or the samples have no decoder.
    if own_s is None:
        return {}
    ratios = {name: each / own_s for name, each in seconds.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio <= LEAST_QUICKER}


def decoder_seconds(job: Job, prepared: PreparedData) -> dict[str, float]:
    """Name of a decoder -> seconds in which one thread decodes a file, by `seconds_by_library`."""
    broken = [index for index, _ in prepared.broken]
    return seconds_by_library(prepared.dataset.open(), broken, job.seed)


def _time_batch_transform(explained: ExplainedJob) -> float | None:
    if not transforms_samples(explained.job):
        return None
    # The time is the difference between two rungs, which are the job without some of its parts: the
    # copy to the device with the transform, and the copy alone.
    without_workers = explained.without_workers(1)
    on_device = replace(without_workers.job.transform, where="device")  # pyright: ignore
    moved = replace(without_workers, job=replace(without_workers.job, transform=on_device))
    try:
        without = moved.time_rung(Part.COPY, 0)
        with_transform = moved.time_rung(Part.TRANSFORM, 0)
    except JobFailed:
        # The transform takes single samples only.
        return None
    added_s = with_transform.seconds / with_transform.batches - without.seconds / without.batches
    return max(0.0, added_s)


def share_of_loading(rung: Part, times: Round) -> float:
    """Share of the time of loading that a part takes; 0 if it has no rung, or if it is no part of
    loading, such as a transform on the device.

    times: the times of all rungs in a round in which nothing overlaps.
    """
    rungs = list(times)
    if rung not in times or Part.COPY not in times:
        return 0.0
    delivery = _last_rung_of_delivery(times)
    if rungs.index(rung) <= rungs.index(delivery):
        return 0.0
    below = rungs[rungs.index(rung) - 1]
    load_s = times[rungs[-1]].seconds - times[delivery].seconds
    part_s = times[rung].seconds - times[below].seconds
    return min(1.0, max(0.0, part_s / load_s)) if load_s > 0 else 0.0


def _last_rung_of_delivery(times: Round) -> Part:
    """The rung on which batches are ready before the clock starts: they are only copied to the
    device, and perhaps transformed there. All rungs above it are parts of loading."""
    rungs = list(times)
    # Samples that are transformed on the device have their rung below the hand-off's. Other
    # loaders than DataLoader have a single rung of loading, the last one.
    first = rungs.index(Part.HAND_OFF) if Part.HAND_OFF in times else len(rungs) - 1
    return rungs[first - 1]


@dataclass(frozen=True, kw_only=True)
class SingleBatches:
    """Times of single batches of a job without workers."""

    own_threads: BatchTimes
    """With the job's own number of torch's threads."""
    one_thread: BatchTimes
    """With one thread, as in a worker."""


def time_single_batches(whole_epochs: ExplainedJob) -> SingleBatches:
    """Time single batches; each result merges two passes, and has their difference."""
    own_threads = whole_epochs.without_workers(whole_epochs.job.torch_threads)
    one_thread = whole_epochs.without_workers(1)
    first = own_threads.time_batches()
    # The job has one thread already: two passes serve both.
    if first.torch_threads == 1:
        both = merge_batches(first, one_thread.time_batches())
        return SingleBatches(own_threads=both, one_thread=both)
    # The order is: own threads, one, one, own threads. If the machine slows down steadily, this
    # slows down both means alike.
    passes = [one_thread.time_batches() for _ in range(2)]
    return SingleBatches(
        own_threads=merge_batches(first, own_threads.time_batches()),
        one_thread=merge_batches(*passes),
    )


def measure_hand_off(
    explained: ExplainedJob,
    workers: Sequence[int],
    ladder: Sequence[Round],
) -> dict[int, list[HandOff]]:
    """Number of workers -> times of the hand-off from these workers to the loop, round by round.

    workers: numbers of workers, of which 0 is left out. ladder: rounds of the job's ladder. If they
    have a rung of the hand-off, its times are used for the job's own number of workers.
    """
    present = explained.job.loading.num_workers
    hand_off: dict[int, list[HandOff]] = {count: [] for count in workers if count}
    if present in hand_off and Part.HAND_OFF in ladder[0]:
        hand_off[present] = [HandOff(each[Part.HAND_OFF], each[Part.COPY]) for each in ladder]
    missing = [count for count, rounds in hand_off.items() if not rounds]
    for number in range(HAND_OFF_ROUNDS if missing else 0):
        in_loop = explained.time_rung(Part.COPY, number)
        for count in missing:
            from_workers = explained.with_workers(count).time_rung(Part.HAND_OFF, number)
            hand_off[count].append(HandOff(from_workers, in_loop))
    return hand_off


def measure_for_model(
    explained: ExplainedJob,
    times: SingleBatches,
    ladder: Round,
    hand_off: Mapping[int, Sequence[HandOff]],
    costs: PartCosts,
) -> Measured:
    """The model's input.

    ladder: a round of the job's ladder in which nothing overlaps, or any round if the loader can't
    be taken apart.
    """
    return Measured(
        batches=explained.whole_batches,
        own_threads=times.own_threads,
        one_thread=times.one_thread,
        hand_off=hand_off,
        kept=_share_without_samples(ladder),
        decode_share=share_of_loading(Part.DECODE, ladder),
        transform_share=share_of_loading(Part.TRANSFORM, ladder),
        decoders=costs.decoders,
        batch_transform_s=costs.batch_transform_s,
    )


def _share_without_samples(ladder: Round) -> float:
    """Share of loading that remains if samples come from a store: the hand-off, collate, and the
    transform if the loader applies it."""
    # The loader was not taken apart, so it is not known which part of its work a store would save.
    if Part.COLLATE not in ladder:
        return 1.0
    rungs, delivery = list(ladder), _last_rung_of_delivery(ladder)
    is_transformed = Part.TRANSFORM in rungs[rungs.index(Part.COLLATE) :]
    last_kept = ladder[Part.TRANSFORM if is_transformed else Part.COLLATE]
    load_s = ladder[rungs[-1]].seconds - ladder[delivery].seconds
    kept_s = last_kept.seconds - ladder[delivery].seconds
    return min(1.0, max(0.0, kept_s / load_s)) if load_s > 0 else 1.0
