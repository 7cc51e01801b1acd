"""Predict the gain of a change, which is the share of an epoch that it saves, with an interval.

A predicted gain is uncertain for four reasons:

- Only some batches were timed. A bootstrap estimates the effect of their choice.
- Two passes over the same batches take different times.
- The model has errors. It misses the time of the job as it is, and is assumed to miss the time
  after a change by at least LEAST_MISS, or LEAST_MISS_OF_OTHERS with another loader.
- The passes that later measure the realised gain are noisy.

The variances of these errors are added on the logarithmic scale.
experiments/explain/README.md counts how often the intervals contain the realised gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from fastloop.core import stats
from fastloop.core.loading_settings import DECLARED
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.types import name_of
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.job_facts import uses_dataloader
from fastloop.explain.ladder import Ladder
from fastloop.explain.model import LEAST_MISS, LEAST_MISS_OF_OTHERS
from fastloop.explain.predict import HandOff, Measured, predict_gathered_seconds, predict_seconds
from fastloop.trial.job import Job

STORE_LOADER = "np_memmap"
"""Name of the loader that runs a DataLoader over a store, which holds decoded samples.
`Measured.kept` is the share of the work of loading that remains with this loader."""
FOLLOWED = frozenset({"loading", "torch_threads", "loader", "decoder", "dataset", "transform"})
"""Settings of a job for which the model can predict the effect of a change."""
FOLLOWED_OF_LOADING = frozenset(name for name, each in DECLARED.items() if each.is_modelled)
"""Settings inside of `loading` for which the model can predict the effect of a change."""
RESAMPLES = 16
"""Number of bootstrap samples for each change; all changes of a job use the same samples."""
DEVIATIONS_TO_END = 1.645
"""Standard deviations from the middle to an end of a 90 % interval of a normal variable."""
MOST_DIFFERENT = 0.3
"""Greatest allowed difference of two passes, as the logarithm of the ratio of their times. 0.3 is a
factor of 1.35. If two passes differ by more, their mean says nothing about a further pass."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of a change on loading and on steps, relative to the measured times."""

    kept: float = 1.0
    """Share of the measured work of loading that remains after the change."""
    step_s: float = 0.0
    """Seconds by which each step takes longer."""
    is_gathered: bool = False
    """True if a thread gathers the rows of a store ahead of the loop, as fast as memory permits."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model of a job before and after a change: functions from measurements to seconds."""

    present: Callable[[Measured], float]
    """Seconds of an epoch of the job as it is."""
    changed: Callable[[Measured], float]
    """Seconds of an epoch of the changed job."""
    keeps_miss: bool
    """True if the change keeps the loader, its work, and the numbers of workers and of threads. The
    model's miss, which is its error on the job as it is, then stays the same after the change."""
    is_other_loader: bool
    """True if the change makes batches in another way: by another loader or decoder, or with the
    transform on the device."""


def predict_gain(job: Job, present: Job, measured: Measured, ladder: Ladder) -> Estimate | None:
    """Share of an epoch that a change saves, with its interval; None if it can't be predicted.

    job: the changed job. present: the job as it is, to which `measured` and `ladder` belong.
    """
    # If the files are warm already, cache=warm changes nothing.
    if present.cache != "warm" and job == replace(present, cache="warm"):
        return _gain_of_warm_files(ladder)
    effect = find_effect(job, present, measured)
    if effect is None:
        return None
    changed = partial(predict_seconds, job, kept=effect.kept, added_step_s=effect.step_s)
    if effect.is_gathered:
        changed = partial(predict_gathered_seconds, job)
    # These three settings decide which measured times of batches the model uses.
    before, after = (
        (each.loader, each.loading.num_workers, each.torch_threads) for each in (present, job)
    )
    prediction = Prediction(
        present=partial(predict_seconds, present),
        changed=changed,
        keeps_miss=before == after and effect == Effect(),
        is_other_loader=job.loader != present.loader or effect != Effect(),
    )
    return estimate_gain(prediction, measured, ladder)


def _gain_of_warm_files(ladder: Ladder) -> Estimate | None:
    """The ladder's share of reading files; None if it has no row for reading or for decoding."""
    # Without a row for decoding, READ is all the work of reading a store, and not the cost of a
    # cold page cache.
    shares = {row.rung: row.share for row in ladder.rows}
    return shares.get(Part.READ) if Part.DECODE in shares else None


def find_effect(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a change; None if no measurement shows the effect.

    A change with an unknown effect can only be tried. job: the changed job. present: the job as it
    is.
    """
    # `batches` and `benchmark` differ because epochs were cut, and not because of the change.
    changed = _differences(job, present) - {"batches", "benchmark"}
    # On an accelerator, device_prefetch makes copies run beside the loop, which the passes without
    # workers do not show. On the CPU it is a thread that loads ahead, as the model assumes.
    followed = FOLLOWED if torch.accelerator.is_available() else FOLLOWED | {"device_prefetch"}
    # The model does not follow pinning, the page cache, or changes of the batches themselves, such
    # as their size.
    if changed - followed or _differences(job.loading, present.loading) - FOLLOWED_OF_LOADING:
        return None
    effects = []
    if "loader" in changed:
        effects.append(_effect_of_loader(job, present, measured))
    # All loaders with a known effect read a store. A store holds decoded samples, so with these
    # loaders the decoder has no effect.
    elif changed & {"decoder", "dataset"}:
        effects.append(_effect_of_decoder(job, present, measured))
    if "transform" in changed:
        effects.append(_effect_of_transform(job, present, measured))
    return _combine(effects)


def _combine(effects: Sequence[Effect | None]) -> Effect | None:
    """The effect of several changes together; None if a change has no known effect."""
    known = [each for each in effects if each is not None]
    # predict_gathered_seconds can't add the work of a transform (step_s) to the steps.
    is_gathered = any(each.is_gathered for each in known)
    if len(known) < len(effects) or (is_gathered and any(each.step_s for each in known)):
        return None
    # The changes save different parts of loading, so their savings add up. The shares of the parts
    # were measured with noise, so the sum may be above 1.
    saved = sum(1 - each.kept for each in known)
    added_s = sum(each.step_s for each in known)
    return Effect(kept=max(0.0, 1 - saved), step_s=added_s, is_gathered=is_gathered)


def _differences(one: Any, other: Any) -> set[str]:
    """Names of the fields in which two dataclasses differ."""
    names = (field.name for field in fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}


def _effect_of_loader(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of another loader; None if no measurement shows it."""
    name = name_of(job.loader)
    # The measured batches do not show how a loader without a store would read this dataset, or how
    # any loader would read another dataset.
    if job.loader.store is None or not _is_same_but_decoder(job, present):
        return None
    if not uses_dataloader(job):
        return Effect(is_gathered=True) if name == "fastloop" else None
    # If the job reads a store already, its ladder has no work per sample that a store would save.
    is_known = name == STORE_LOADER and present.loader.store is None
    return Effect(kept=measured.kept) if is_known else None


def _effect_of_decoder(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of another decoder; None if no measurement shows it."""
    decoder = getattr(job.dataset, "decoder", None)
    ratio = measured.decoders.get(name_of(decoder)) if decoder else None
    # The decoder was not timed, or the change is not one of the decoder alone.
    if ratio is None or not _is_same_but_decoder(job, present):
        return None
    return Effect(kept=1 - measured.decode_share * (1 - ratio))


def _is_same_but_decoder(job: Job, present: Job) -> bool:
    """True if the datasets of both jobs are the same, apart from their decoders."""
    one, other = cast("Any", job.dataset), cast("Any", present.dataset)
    if type(one) is not type(other) or not hasattr(one, "decoder"):
        return one == other
    return one == replace(other, decoder=one.decoder)


def _effect_of_transform(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a transform that moves from workers to the device; None for other changes."""
    transform: Any = present.transform
    moves = present.transform.where == "worker" and job.transform.where == "device"
    if measured.batch_transform_s is None or not moves:
        return None
    # The transform differs in more than its place.
    if replace(transform, where="device") != job.transform:
        return None
    return Effect(kept=1 - measured.transform_share, step_s=measured.batch_transform_s)


def estimate_gain(prediction: Prediction, measured: Measured, ladder: Ladder) -> Estimate | None:
    """The share of an epoch that a change saves, with its 90 % interval.

    None if the two passes of single batches differ too much for a prediction.
    """
    difference = max(measured.own_threads.difference, measured.one_thread.difference)
    # If the change keeps the miss, the passes need not agree, because the model's times before and
    # after the change then come from the same batches.
    if difference > MOST_DIFFERENT and not prediction.keeps_miss:
        return None
    # Two passes that each have the standard deviation s differ by about s * sqrt(2).
    basis = 0.0 if prediction.keeps_miss else max(ladder.noise, difference) / math.sqrt(2)
    miss = math.log(prediction.present(measured) / ladder.epoch_s.value)
    # If loader, workers and threads stay, the miss stays, and all of it is subtracted. After other
    # changes the miss may stay or vanish, so half of it is subtracted. In both cases half of it
    # (miss / 2 below) also counts as a standard deviation.
    kept = 1.0 if prediction.keeps_miss else 0.5
    log_ratio = math.log(prediction.changed(measured) / ladder.epoch_s.value) - kept * miss
    floor = LEAST_MISS_OF_OTHERS if prediction.is_other_loader else LEAST_MISS
    # A realised gain compares two means, each over as many rounds as the ladder has.
    noise = ladder.noise * math.sqrt(2 / ladder.rounds)
    sources = [_spread(prediction, measured, ladder.noise), miss / 2, floor, noise, basis]
    reach = DEVIATIONS_TO_END * math.hypot(*sources)
    middle, low, high = (1 - math.exp(log_ratio + each) for each in (0.0, reach, -reach))
    return Estimate(value=middle, low=low, high=high, is_interval=True)


def _spread(prediction: Prediction, measured: Measured, noise: float) -> float:
    """Standard deviation over bootstrap samples of log(time after the change / time before).

    noise: as in `resample`.
    """
    logs = []
    # The seeds are fixed. So equal measurements give equal intervals, and all changes of a job are
    # judged by the same bootstrap samples.
    for seed in range(RESAMPLES):
        generator = np.random.default_rng(seed)
        again = resample(measured, noise, generator)
        logs.append(math.log(prediction.changed(again) / prediction.present(again)))
    return stats.std(logs) or 0.0


def resample(measured: Measured, noise: float, generator: np.random.Generator) -> Measured:
    """A bootstrap sample of the measurements.

    Batches, and rounds of hand-offs, are drawn with replacement.
    noise: relative standard deviation of a pass of the ladder.
    """
    hand_off = {
        workers: _resample_rounds(rounds, noise, generator)
        for workers, rounds in measured.hand_off.items()
    }
    return replace(
        measured,
        own_threads=_resample_batches(measured.own_threads, generator),
        one_thread=_resample_batches(measured.one_thread, generator),
        hand_off=hand_off,
    )


def _resample_rounds(
    rounds: Sequence[HandOff], noise: float, generator: np.random.Generator
) -> list[HandOff]:
    """As many rounds, drawn with replacement, each with random noise of this standard deviation."""
    places = generator.integers(len(rounds), size=len(rounds)).tolist()
    # The times of few rounds may be almost equal by chance. So each time gets the noise of a pass
    # of the ladder.
    factors = np.exp(noise * generator.standard_normal(len(rounds))).tolist()
    return [
        _scale_workers_pass(rounds[place], factor)
        for place, factor in zip(places, factors, strict=True)
    ]


def _scale_workers_pass(hand_off: HandOff, factor: float) -> HandOff:
    """The hand-off, with the seconds of the workers' pass multiplied by the factor."""
    from_workers = hand_off.from_workers
    scaled = replace(from_workers, seconds=from_workers.seconds * factor)
    return hand_off._replace(from_workers=scaled)


def _resample_batches(times: BatchTimes, generator: np.random.Generator) -> BatchTimes:
    """The times of as many batches, drawn with replacement."""
    places = generator.integers(len(times.load_s), size=len(times.load_s)).tolist()

    def pick(values: Sequence[float]) -> list[float]:
        return [values[place] for place in places]

    return replace(
        times,
        load_s=pick(times.load_s),
        load_cpu_s=pick(times.load_cpu_s),
        step_s=pick(times.step_s),
        step_cpu_s=pick(times.step_cpu_s),
    )
