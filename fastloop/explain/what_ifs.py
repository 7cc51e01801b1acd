"""Changes of a job: predicted by the model, the best of them run beside the job as it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from fastloop.core.explanation import Rung, WhatIf
from fastloop.core.stats import Estimate
from fastloop.core.types import JobFailed, Unsupported
from fastloop.explain.certainty import draw_seconds, estimate_from
from fastloop.explain.explained_job import ExplainedJob, time_side_by_side
from fastloop.explain.gains import Prediction, estimate_gain
from fastloop.explain.ladder import Ladder, Round
from fastloop.explain.passes import BatchTimes
from fastloop.explain.predict import Measured, predict_gathered_seconds, predict_seconds
from fastloop.explain.rungs import uses_dataloader
from fastloop.explain.variations import Variation, variations_of
from fastloop.sweep.prepare_stage import prepare_job
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

LEAST_GAIN = 0.02
"""Predicted share of an epoch from which a change is worth trying."""
ALWAYS_TRIED = "torch_threads=1"
"""torch's threads against each other, or against workers, are the commonest cause."""
AS_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A change, the job that it makes, and what the model says."""

    change: Variation
    explained: ExplainedJob
    predicted_gain: Estimate | None
    """None where the model misses the job as it is."""


def find_candidates(
    explained: ExplainedJob, overrides: Sequence[str], compose: Callable[[Sequence[str]], Job]
) -> list[tuple[Variation, Job]]:
    """The changes that this machine and this data support, with the jobs that they make."""
    found = []
    for change in variations_of(explained.job):
        job = replace(compose(change.apply(overrides)), batches=explained.job.batches)
        try:
            check_support(job)
        except Unsupported:
            continue
        if job.loader.store is None or not (explained.prepared.random or explained.prepared.broken):
            found.append((change, job))
    return found


def measure_for_model(
    explained: ExplainedJob,
    times: tuple[BatchTimes, BatchTimes],
    ladder: Round,
    workers: Sequence[int],
) -> Measured:
    """The model's input: single batches, and the hand-off from these numbers of workers.

    ladder: a round of the job without workers.
    """
    kept = 1.0
    if Rung.COLLATE in ladder:
        below = ladder[Rung.TRANSFORM] if Rung.TRANSFORM in ladder else ladder[Rung.COLLATE]
        load_s = list(ladder.values())[-1].seconds - ladder[Rung.COPY].seconds
        kept_s = below.seconds - ladder[Rung.COPY].seconds
        kept = min(1.0, max(0.0, kept_s / load_s)) if load_s > 0 else 1.0
    hand_off = {}
    if counts := sorted({*workers} - {0}):
        ready = explained.time_rung(Rung.COPY, 0)
        for count in counts:
            hand_off[count] = explained.with_workers(count).time_rung(Rung.HAND_OFF, 0), ready
    as_is, single = times
    return Measured(
        batches=explained.whole_batches, as_is=as_is, single=single, hand_off=hand_off, kept=kept
    )


def predict_gain(candidate: Job, present: Job, measured: Measured, ladder: Ladder) -> Estimate:
    """Share of an epoch that the candidate saves, with its interval."""
    is_new_store = present.loader.store is None and candidate.loader.store is not None
    is_other = candidate.loader != present.loader
    changed = partial(predict_seconds, candidate, loads_rows=is_new_store)
    if is_other and not uses_dataloader(candidate):
        changed = partial(predict_gathered_seconds, candidate)
    before, after = (
        (job.loader, job.loading.num_workers, job.torch_threads) for job in (present, candidate)
    )
    prediction = Prediction(
        present=partial(predict_seconds, present),
        changed=changed,
        keeps_miss=before == after,
        is_other_loader=is_other,
    )
    return estimate_gain(prediction, measured, ladder)


def choose(candidates: Sequence[Candidate], tries: int) -> list[Candidate]:
    """The candidates to try: the best by prediction, and always torch_threads=1."""
    ranked = sorted(candidates, key=lambda each: -_prediction_of(each))
    promising = [each for each in ranked if _may_gain(each)][:tries]
    always = [each for each in ranked if each.change.name == ALWAYS_TRIED]
    return promising + [each for each in always if tries and each not in promising]


def _may_gain(candidate: Candidate) -> bool:
    return candidate.predicted_gain is None or candidate.predicted_gain.value >= LEAST_GAIN


def _prediction_of(each: Candidate | WhatIf) -> float:
    return each.predicted_gain.value if each.predicted_gain else 0.0


def try_candidates(
    present: ExplainedJob, chosen: Sequence[Candidate], num_rounds: int, seconds: float | None
) -> dict[str, Estimate]:
    """The realised gain of each chosen change, in rounds with the job as it is."""
    jobs = {AS_IS: present}
    for each in chosen:
        try:
            prepared = prepare_job(each.explained.job, present.launcher)
        except JobFailed:  # a store that can't hold these samples
            continue
        jobs[each.change.name] = replace(each.explained, prepared=prepared)
    timed = time_side_by_side(jobs, num_rounds, seconds) if len(jobs) > 1 else []
    if not timed:
        return {}
    epochs = [
        {name: each.whole_epoch_s(present.whole_batches) for name, each in times.items()}
        for times in timed
    ]
    drawn, _ = draw_seconds(epochs)
    gains = {name: estimate_from(1 - draws / drawn[AS_IS]) for name, draws in drawn.items()}
    return {name: gain for name, gain in gains.items() if name != AS_IS}


def list_what_ifs(
    candidates: Sequence[Candidate], gains: dict[str, Estimate], overrides: Sequence[str]
) -> tuple[WhatIf, ...]:
    """All changes: tried ones first, by what they gained, then the others by prediction."""
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
    """The change that gained most, if that is beyond noise and worth the trouble."""
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
