"""Changes of a job: the model predicts them, and the best run in rounds with the job as it is."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fastloop.core.explanation import WhatIf
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.types import JobFailed, Unsupported
from fastloop.explain.certainty import draw_seconds, estimate_from
from fastloop.explain.effects import Effect, find_effect
from fastloop.explain.explained_job import ExplainedJob, time_side_by_side
from fastloop.explain.gains import Prediction, estimate_gain
from fastloop.explain.ladder import Ladder
from fastloop.explain.predict import Measured, predict_gathered_seconds, predict_seconds
from fastloop.explain.rung_passes import benchmark_of
from fastloop.explain.rungs import benchmark_name
from fastloop.explain.variations import Variation
from fastloop.sweep.prepare_stage import prepare_job
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

LEAST_GAIN = 0.02
"""A change is worth trying, or following, if it saves at least this share of an epoch."""
STEPS_AFTER = 1
"""Number of steps that follow the changes: an epoch is recorded."""
# Torch's threads, which compete among each other or with workers, are the most common cause. The
# cost of a cold page cache can't be predicted, and is proposed only if files were not in memory.
ALWAYS_TRIED = ("torch_threads=1", "cache=cold")
COMMON = ("num_workers", "decoder")
"""Settings that remove the other common causes."""
AS_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change, the changed job, and the model's prediction."""

    change: Variation
    explained: ExplainedJob
    predicted_gain: Estimate | None
    """None if the model misses the job as it is, or no measurement tells the gain."""


def find_candidates(
    explained: ExplainedJob,
    changes: Sequence[Variation],
    overrides: Sequence[str],
    compose: Callable[[Sequence[str]], Job],
) -> list[tuple[Variation, ExplainedJob]]:
    """The changes that this machine and this data support, with the changed jobs."""
    found = []
    for change in changes:
        changed = _resize(explained, compose(change.apply(overrides)))
        try:
            check_support(changed.job)
        except Unsupported:
            continue
        # A store would freeze random samples, and has no place for broken ones.
        is_stored = changed.job.loader.store is not None
        if not (is_stored and (explained.prepared.random or explained.prepared.broken)):
            found.append((change, changed))
    return found


def _resize(explained: ExplainedJob, job: Job) -> ExplainedJob:
    """The changed job, with as many samples in its epochs as the job as it is."""
    size = explained.job.loading.batch_size / job.loading.batch_size
    batches = explained.job.batches and max(1, math.ceil(explained.job.batches * size))
    job = replace(job, batches=batches, benchmark={benchmark_name(job): benchmark_of(job)})
    whole = max(1, math.ceil(explained.whole_batches * size))
    return replace(explained, job=job, whole_batches=whole)


def predict_gain(
    candidate: Job, present: Job, measured: Measured, ladder: Ladder
) -> Estimate | None:
    """Share of an epoch that the candidate saves, with its interval; None without a basis."""
    if candidate == replace(present, cache="warm"):
        return _gain_of_warm_files(ladder)
    effect = find_effect(candidate, present, measured)
    if effect is None:
        return None
    changed = partial(predict_seconds, candidate, kept=effect.kept, added_step_s=effect.step_s)
    if effect.is_gathered:
        changed = partial(predict_gathered_seconds, candidate)
    # These three decide on which of the measured batches the model is based.
    before, after = (
        (job.loader, job.loading.num_workers, job.torch_threads) for job in (present, candidate)
    )
    prediction = Prediction(
        present=partial(predict_seconds, present),
        changed=changed,
        keeps_miss=before == after and effect == Effect(),
        is_other_loader=candidate.loader != present.loader or effect != Effect(),
    )
    return estimate_gain(prediction, measured, ladder)


def _gain_of_warm_files(ladder: Ladder) -> Estimate | None:
    """The share of reading by the ladder; None if reading is not a rung above decoding."""
    # Without a rung for decoding, READ is all the work of reading a store, and not of a cold cache.
    shares = {row.rung: row.share for row in ladder.rows}
    return shares.get(Part.READ) if Part.DECODE in shares else None


def choose(candidates: Sequence[Candidate], tries: int) -> list[Candidate]:
    """The candidates to try: the best by prediction, the most promising one for each common cause,
    ALWAYS_TRIED, and all that the user named."""
    # Candidates without a prediction rank equally; other loaders come first among them, as they may
    # save all of the work of loading.
    loaders = _changes_of("loader", candidates)
    ranked = sorted(candidates, key=lambda each: (-_prediction_of(each), each not in loaders))
    promising = [each for each in ranked if _may_gain(each)]
    chosen = promising[:tries]
    if tries:
        chosen += [each for each in ranked if each.change.name in ALWAYS_TRIED]
        chosen += [each for cause in COMMON for each in _changes_of(cause, promising)[:1]]
    chosen += [each for each in ranked if each.change.is_asked]
    return list({each.change.name: each for each in chosen}.values())


def _changes_of(setting: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [each for each in candidates if each.change.name.startswith(f"{setting}=")]


def _may_gain(candidate: Candidate) -> bool:
    return candidate.predicted_gain is None or candidate.predicted_gain.value >= LEAST_GAIN


def _prediction_of(each: Candidate | WhatIf) -> float:
    return each.predicted_gain.value if each.predicted_gain else 0.0


def try_candidates(
    present: ExplainedJob, chosen: Sequence[Candidate], num_rounds: int, seconds: float | None
) -> dict[str, Estimate]:
    """The realised gain of each chosen change, in rounds with the job as it is.

    Tells the number of steps that are left, which depends on the changes.
    """
    jobs = {AS_IS: present}
    for each in chosen:
        try:
            prepared = prepare_job(each.explained.job, present.launcher)
        except JobFailed:
            # The store of another loader can't hold these samples.
            continue
        jobs[each.change.name] = replace(each.explained, prepared=prepared)
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
    candidates: Sequence[Candidate], gains: dict[str, Estimate], overrides: Sequence[str]
) -> tuple[WhatIf, ...]:
    """All changes: first the tried ones by their gain, then the others by prediction."""
    what_ifs = [
        WhatIf(
            change=each.change.name,
            command="python -m fastloop.run " + shlex.join(each.change.apply(overrides)),
            predicted_gain=each.predicted_gain,
            realised_gain=gains.get(each.change.name),
        )
        for each in candidates
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
