"""Changes of a job: the model predicts them, and the best run in rounds with the job as it is.

A predicted gain is uncertain for four reasons, and so has an interval. Their variances add up on
the logarithmic scale: the choice of batches that were timed (a bootstrap), the difference of two
passes of them, the errors of the model (its miss of the job as it is, and a floor), and the noise
of the passes that judge it. experiments/explain/README.md counts how often the intervals contain
the realised gain.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from fastloop.core import stats
from fastloop.core.explanation import WhatIf
from fastloop.core.loading_settings import DECLARED
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.types import JobFailed, Unsupported, name_of
from fastloop.explain.certainty import draw_seconds, estimate_from
from fastloop.explain.change import LEAST_GAIN, Change
from fastloop.explain.explained_job import ExplainedJob, time_side_by_side
from fastloop.explain.ladder import Ladder
from fastloop.explain.model import LEAST_MISS, LEAST_MISS_OF_OTHERS
from fastloop.explain.predict import HandOff, Measured, predict_gathered_seconds, predict_seconds
from fastloop.explain.rung_passes import BatchTimes, benchmark_of
from fastloop.explain.rungs import benchmark_name, uses_dataloader
from fastloop.sweep.prepare_stage import prepare_job
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

STEPS_AFTER = 1
"""Number of steps that follow the changes: an epoch is recorded."""
# Torch's threads, which compete among each other or with workers, are the most common cause. The
# cost of a cold page cache can't be predicted, and is proposed only if files were not in memory.
ALWAYS_TRIED = ("torch_threads=1", "cache=cold")
COMMON = ("num_workers", "decoder")
"""Settings that remove the other common causes."""
AS_IS = "as it is"
STORE_LOADER = "np_memmap"
"""A DataLoader over rows of a store; `Measured.kept` is the share of loading that it keeps."""
FOLLOWED = frozenset({"loading", "torch_threads", "loader", "decoder", "dataset", "transform"})
"""Settings of a job; the model can predict changes of these alone."""
FOLLOWED_OF_LOADING = frozenset(name for name, each in DECLARED.items() if each.is_modelled)
"""The same for the settings inside of `loading`."""
RESAMPLES = 16
"""Samples of the bootstrap, for each change; all changes of a job share them."""
BEYOND = 1.645
"""Standard deviations from the middle to the ends of a 90 % interval of a normal variable."""
MOST_DIFFERENT = 0.3
"""Greatest logarithm of the ratio of two passes, a factor of 1.35; beyond it their mean tells
nothing of a further pass."""


@dataclass(frozen=True, kw_only=True)
class ChangedJob:
    """A job after a change, which explain may try and tune may race."""

    change: Change
    job: Job
    predicted_gain: Estimate | None = None
    """Share of an epoch that the change saves, by the model. None if nothing is predicted yet, the
    model misses the job as it is, or no measurement tells the gain."""

    @property
    def name(self) -> str:
        """The change as text."""
        return self.change.name


def find_changed_jobs(
    explained: ExplainedJob,
    changes: Sequence[Change],
    overrides: Sequence[str],
    compose: Callable[[Sequence[str]], Job],
) -> list[ChangedJob]:
    """The changes that this machine and this data support."""
    found = []
    for change in changes:
        job = _resize(explained, compose(change.apply(overrides))).job
        try:
            check_support(job)
        except Unsupported:
            continue
        # A store would freeze random samples, and has no place for broken ones.
        is_stored = job.loader.store is not None
        if not (is_stored and (explained.prepared.random or explained.prepared.broken)):
            found.append(ChangedJob(change=change, job=job))
    return found


def _resize(explained: ExplainedJob, job: Job) -> ExplainedJob:
    """The changed job, with as many samples in its epochs as the job as it is."""
    size = explained.job.loading.batch_size / job.loading.batch_size
    batches = explained.job.batches and max(1, math.ceil(explained.job.batches * size))
    job = replace(job, batches=batches, benchmark={benchmark_name(job): benchmark_of(job)})
    whole = max(1, math.ceil(explained.whole_batches * size))
    return replace(explained, job=job, whole_batches=whole)


def predict_gain(job: Job, present: Job, measured: Measured, ladder: Ladder) -> Estimate | None:
    """Share of an epoch that the job saves, with its interval; None if no measurement tells
    it."""
    # If the files are warm already, this change is none.
    if present.cache != "warm" and job == replace(present, cache="warm"):
        return _gain_of_warm_files(ladder)
    effect = find_effect(job, present, measured)
    if effect is None:
        return None
    changed = partial(predict_seconds, job, kept=effect.kept, added_step_s=effect.step_s)
    if effect.is_gathered:
        changed = partial(predict_gathered_seconds, job)
    # These three settings decide on which of the measured batches the model is based.
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
    """The share of reading by the ladder; None if reading is not a rung above decoding."""
    # Without a rung for decoding, READ is all the work of reading a store, and not of a cold cache.
    shares = {row.rung: row.share for row in ladder.rows}
    return shares.get(Part.READ) if Part.DECODE in shares else None


def choose(changes: Sequence[ChangedJob], tries: int) -> list[ChangedJob]:
    """The changes to try: the best by prediction, the most promising one for each common cause,
    ALWAYS_TRIED, and all that the user named."""
    # Changes without a prediction rank equally; other loaders come first among them, as they may
    # save all of the work of loading.
    loaders = _changes_of("loader", changes)
    ranked = sorted(changes, key=lambda each: (-_prediction_of(each), each not in loaders))
    promising = [each for each in ranked if _may_gain(each)]
    chosen = promising[:tries]
    if tries:
        chosen += [each for each in ranked if each.name in ALWAYS_TRIED]
        chosen += [each for cause in COMMON for each in _changes_of(cause, promising)[:1]]
    chosen += [each for each in ranked if each.change.is_asked]
    return list({each.name: each for each in chosen}.values())


def _changes_of(setting: str, changes: Sequence[ChangedJob]) -> list[ChangedJob]:
    return [each for each in changes if each.name.startswith(f"{setting}=")]


def _may_gain(each: ChangedJob) -> bool:
    return each.predicted_gain is None or each.predicted_gain.value >= LEAST_GAIN


def _prediction_of(each: ChangedJob | WhatIf) -> float:
    return each.predicted_gain.value if each.predicted_gain else 0.0


def try_changed_jobs(
    present: ExplainedJob, chosen: Sequence[ChangedJob], num_rounds: int, seconds: float | None
) -> dict[str, Estimate]:
    """The realised gain of each chosen change, in rounds with the job as it is.

    present.expect_steps is called with the number of steps that are left, which depends on the
    changes.
    """
    jobs = {AS_IS: present}
    for each in chosen:
        try:
            prepared = prepare_job(each.job, present.launcher)
        except JobFailed:
            # The store of another loader can't hold these samples.
            continue
        jobs[each.name] = replace(_resize(present, each.job), prepared=prepared)
    num_timed = num_rounds * len(jobs) if len(jobs) > 1 else 0
    present.expect_steps(num_timed + STEPS_AFTER)
    timed = time_side_by_side(jobs, num_rounds, seconds) if len(jobs) > 1 else []
    if not timed:
        return {}
    epochs = [
        {name: each.whole_epoch_s(jobs[name].whole_batches) for name, each in times.items()}
        for times in timed
    ]
    drawn, _ = draw_seconds(epochs)
    gains = {name: estimate_from(1 - draws / drawn[AS_IS]) for name, draws in drawn.items()}
    return {name: gain for name, gain in gains.items() if name != AS_IS}


def list_what_ifs(
    changes: Sequence[ChangedJob], gains: dict[str, Estimate], request: JobRequest
) -> tuple[WhatIf, ...]:
    """All changes: first the tried ones by their gain, then the others by prediction."""
    what_ifs = [
        WhatIf(
            change=each.name,
            command="python -m fastloop.run "
            + shlex.join([*request.flags, *each.change.apply(request.overrides)]),
            predicted_gain=each.predicted_gain,
            realised_gain=gains.get(each.name),
        )
        for each in changes
    ]
    return tuple(sorted(what_ifs, key=_place))


def find_best(what_ifs: Sequence[WhatIf]) -> WhatIf | None:
    """The change with the greatest gain beyond noise that is worth following; None: there is
    none."""
    proven = [
        each
        for each in what_ifs
        if each.realised_gain
        and each.realised_gain.low > 0
        and each.realised_gain.value >= LEAST_GAIN
    ]
    return max(proven, key=_gain, default=None)


def _gain(what_if: WhatIf) -> float:
    return what_if.realised_gain.value if what_if.realised_gain else 0.0


def _place(what_if: WhatIf) -> tuple[bool, float]:
    gain = what_if.realised_gain
    return gain is None, -(gain.value if gain else _prediction_of(what_if))


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Loading and stepping after a change, relative to the measured ones."""

    kept: float = 1.0
    """Share of the work of loading that is left."""
    step_s: float = 0.0
    """Seconds that a step takes longer."""
    is_gathered: bool = False
    """True if a thread gathers the rows of a store ahead, as fast as memory permits."""


def find_effect(job: Job, present: Job, measured: Measured) -> Effect | None:
    """The effect of a change; None if no measurement shows it, so that it can only be tried."""
    # `batches` and `benchmark` differ because epochs were cut, and not because of the change.
    changed = _differences(job, present) - {"batches", "benchmark"}
    # With an accelerator, copies run beside the loop, and the passes without workers do not show
    # them. Without one, device_prefetch is a thread that loads ahead, as the model assumes.
    followed = FOLLOWED if torch.accelerator.is_available() else FOLLOWED | {"device_prefetch"}
    # The model does not follow pinning, the page cache, and changes of the batches themselves, such
    # as of their size.
    if changed - followed or _differences(job.loading, present.loading) - FOLLOWED_OF_LOADING:
        return None
    if "loader" in changed:
        return _effect_of_loader(job, present, measured)
    if changed & {"decoder", "dataset"}:
        return _effect_of_decoder(job, present, measured)
    if "transform" in changed:
        return _effect_of_transform(job, present, measured)
    return Effect()


def _differences(one: Any, other: Any) -> set[str]:
    names = (field.name for field in fields(one))
    return {name for name in names if getattr(one, name) != getattr(other, name)}


def _effect_of_loader(job: Job, present: Job, measured: Measured) -> Effect | None:
    name = name_of(job.loader)
    # The measured batches do not tell how another loader reads the same dataset.
    if job.loader.store is None:
        return None
    if not uses_dataloader(job):
        return Effect(is_gathered=True) if name == "fastloop" else None
    # The ladder of a job that reads a store already has no samples to leave out.
    is_known = name == STORE_LOADER and present.loader.store is None
    return Effect(kept=measured.kept) if is_known else None


def _effect_of_decoder(job: Job, present: Job, measured: Measured) -> Effect | None:
    decoder = getattr(job.dataset, "decoder", None)
    ratio = measured.decoders.get(name_of(decoder)) if decoder else None
    dataset: Any = present.dataset
    # The decoder was not timed, or the change is not one of the decoder alone.
    if ratio is None or replace(dataset, decoder=decoder) != job.dataset:
        return None
    return Effect(kept=1 - measured.decode_share * (1 - ratio))


def _effect_of_transform(job: Job, present: Job, measured: Measured) -> Effect | None:
    transform: Any = present.transform
    moves = present.transform.where == "worker" and job.transform.where == "device"
    if measured.batch_transform_s is None or not moves:
        return None
    if replace(transform, where="device") != job.transform:
        return None
    return Effect(kept=1 - measured.transform_share, step_s=measured.batch_transform_s)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model's seconds of a changed job beside those of the job as it is."""

    present: Callable[[Measured], float]
    changed: Callable[[Measured], float]
    keeps_miss: bool
    """True if loader, workers and threads stay, so that the model's miss is the same after the
    change."""
    is_other_loader: bool
    """True if batches are made in another way: by another loader, decoder or place."""


def estimate_gain(prediction: Prediction, measured: Measured, ladder: Ladder) -> Estimate | None:
    """The share of an epoch that a change saves, with its 90 % interval; None if two passes of
    single batches differ too much for a prediction."""
    difference = max(measured.as_is.difference, measured.single.difference)
    # A model that is compared with itself needs no agreement of the passes: both of its epochs are
    # from the same batches.
    if difference > MOST_DIFFERENT and not prediction.keeps_miss:
        return None
    # Two passes with a deviation of s each differ by about s * sqrt(2).
    basis = 0.0 if prediction.keeps_miss else max(ladder.noise, difference) / math.sqrt(2)
    miss = math.log(prediction.present(measured) / ladder.epoch_s.value)
    # The miss cancels if loader, workers and threads stay. After other changes it may stay or
    # vanish: half of it is taken to stay, and the other half (below) as a deviation.
    kept = 1.0 if prediction.keeps_miss else 0.5
    log_ratio = math.log(prediction.changed(measured) / ladder.epoch_s.value) - kept * miss
    floor = LEAST_MISS_OF_OTHERS if prediction.is_other_loader else LEAST_MISS
    # A realised gain compares two means over as many rounds.
    noise = ladder.noise * math.sqrt(2 / ladder.rounds)
    sources = [_spread(prediction, measured, ladder.noise), miss / 2, floor, noise, basis]
    reach = BEYOND * math.hypot(*sources)
    middle, low, high = (1 - math.exp(log_ratio + each) for each in (0.0, reach, -reach))
    return Estimate(value=middle, low=low, high=high, is_interval=True)


def _spread(prediction: Prediction, measured: Measured, noise: float) -> float:
    """Standard deviation over resamples of the logarithm of the change's effect."""
    logs = []
    # The seeds are fixed: the same measurements give the same interval, and all changes of a job
    # are judged by the same resamples.
    for seed in range(RESAMPLES):
        generator = np.random.default_rng(seed)
        again = resample(measured, noise, generator)
        logs.append(math.log(prediction.changed(again) / prediction.present(again)))
    return stats.std(logs) or 0.0


def resample(measured: Measured, noise: float, generator: np.random.Generator) -> Measured:
    """The measurements with batches and rounds of hand-offs drawn anew.

    noise: relative deviation of a pass of the ladder.
    """
    hand_off = {
        workers: _resample_rounds(rounds, noise, generator)
        for workers, rounds in measured.hand_off.items()
    }
    return replace(
        measured,
        as_is=_resample_batches(measured.as_is, generator),
        single=_resample_batches(measured.single, generator),
        hand_off=hand_off,
    )


def _resample_rounds(
    rounds: Sequence[HandOff], noise: float, generator: np.random.Generator
) -> list[HandOff]:
    places = generator.integers(len(rounds), size=len(rounds)).tolist()
    # Few rounds may be equal by chance; each is taken to be as noisy as a pass of the ladder.
    factors = np.exp(noise * generator.standard_normal(len(rounds))).tolist()
    return [
        (replace(through, seconds=through.seconds * factor), ready)
        for factor, (through, ready) in zip(
            factors, (rounds[place] for place in places), strict=True
        )
    ]


def _resample_batches(times: BatchTimes, generator: np.random.Generator) -> BatchTimes:
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
