"""Measurements of single parts that predictions need: other decoders, and transforms of batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fastloop.core.parts import Part
from fastloop.core.plan import PreparedData
from fastloop.core.types import JobFailed, name_of
from fastloop.explain.changes import transforms_samples
from fastloop.explain.explained_job import ExplainedJob
from fastloop.explain.ladder import Round
from fastloop.explain.rungs import reads_images, uses_dataloader
from fastloop.trial.decode_limit import seconds_by_library
from fastloop.trial.job import Job

LEAST_QUICKER = 0.97
"""A decoder is worth trying if its time is at most this share of the present one's."""


@dataclass(frozen=True, kw_only=True)
class PartCosts:
    """The costs of other ways to make batches; empty if the job has no such part."""

    decoders: dict[str, float] = field(default_factory=dict)
    """By name of a quicker decoder of the same pixels: its time for an image relative to the
    present one's."""
    batch_transform_s: float | None = None
    """Time to transform a whole batch on the device; None: there is no transform, or it takes no
    batch."""


def measure_parts(explained: ExplainedJob) -> PartCosts:
    """The costs for a job on torch's DataLoader; other loaders are not taken apart."""
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
    # A decoder of the user's own has no time here to which others could be compared.
    if own_s is None:
        return {}
    ratios = {name: each / own_s for name, each in seconds.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio <= LEAST_QUICKER}


def decoder_seconds(job: Job, prepared: PreparedData) -> dict[str, float]:
    """Seconds of a file by decoder, in one thread."""
    broken = [index for index, _ in prepared.broken]
    return seconds_by_library(prepared.dataset.open(), broken, job.seed)


def _time_batch_transform(explained: ExplainedJob) -> float | None:
    if not transforms_samples(explained.job):
        return None
    # The difference of two rungs: the copy with the transform, and the copy alone.
    alone = explained.without_workers(1)
    on_device = replace(alone.job, transform=replace(alone.job.transform, where="device"))  # pyright: ignore
    moved = replace(alone, job=on_device)
    try:
        times = [moved.time_rung(rung, 0) for rung in (Part.COPY, Part.TRANSFORM)]
    except JobFailed:
        # The transform takes single samples only.
        return None
    without, with_transform = (each.seconds / each.batches for each in times)
    return max(0.0, with_transform - without)


def share_of_loading(rung: Part, times: Round) -> float:
    """Share of the time of loading that a part takes. times: a round in which nothing overlaps."""
    rungs = list(times)
    if rung not in times or Part.COPY not in times:
        return 0.0
    below = rungs[rungs.index(rung) - 1]
    # All that is above COPY is loading.
    load_s = times[rungs[-1]].seconds - times[Part.COPY].seconds
    part_s = times[rung].seconds - times[below].seconds
    return min(1.0, max(0.0, part_s / load_s)) if load_s > 0 else 0.0
