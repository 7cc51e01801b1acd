"""Find the possible changes of a job, try the most promising ones, and list their gains.

A what-if is a change with its predicted gain and, if it was tried, its realised gain.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fastloop.core.explanation import WhatIf
from fastloop.core.stats import Estimate
from fastloop.core.types import JobFailed, Unsupported
from fastloop.explain.certainty import draw_seconds, estimate_from
from fastloop.explain.change import LEAST_GAIN, Change
from fastloop.explain.explained_job import ExplainedJob, time_side_by_side
from fastloop.explain.job_facts import benchmark_name, benchmark_of
from fastloop.sweep.prepare_job import prepare_job
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job
from fastloop.trial.support import check_support

STEPS_AFTER = 1
"""Number of progress steps of `explain` after the changes were tried: the recording of an epoch."""
# Torch's threads, which compete with each other or with workers, are the most common cause of a
# slow loop. The cost of a cold page cache can't be predicted; cache=cold is proposed only if files
# were not in memory.
ALWAYS_TRIED = ("torch_threads=1", "cache=cold")
"""Names of the changes that are tried whatever gain is predicted."""
COMMON_SETTINGS = ("num_workers", "decoder")
"""Settings that remove the other common causes of a slow loop."""
AS_IS = "as it is"
"""Name of the unchanged job beside the names of the changes."""


@dataclass(frozen=True, kw_only=True)
class ChangedJob:
    """A job after a change, which explain may try and tune may race."""

    change: Change
    job: Job
    predicted_gain: Estimate | None = None
    """Share of an epoch that the change saves, as the loader's model predicts. None if nothing is
    predicted yet, if the model misses the time of the unchanged job, or if no measurement allows a
    prediction."""

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
    """The changes that this machine and this data support, each with the changed job.

    overrides: those of the job's command line. compose: makes a job from overrides.
    """
    found = []
    for change in changes:
        job = _resize(explained, compose(change.apply(overrides))).job
        try:
            check_support(job)
        except Unsupported:
            continue
        # A store would keep one version of each random sample, and can't hold broken samples.
        is_stored = job.loader.store is not None
        if not (is_stored and (explained.prepared.random or explained.prepared.broken)):
            found.append(ChangedJob(change=change, job=job))
    return found


def _resize(explained: ExplainedJob, job: Job) -> ExplainedJob:
    """The changed job, with about as many samples in an epoch as the unchanged job.

    explained: the unchanged job. job: the changed job, which may have another batch size.
    """
    size = explained.job.loading.batch_size / job.loading.batch_size
    batches = explained.job.batches and max(1, math.ceil(explained.job.batches * size))
    job = replace(job, batches=batches, benchmark={benchmark_name(job): benchmark_of(job)})
    whole_batches = max(1, math.ceil(explained.whole_batches * size))
    return replace(explained, job=job, whole_batches=whole_batches)


def choose(changes: Sequence[ChangedJob], tries: int) -> list[ChangedJob]:
    """The changes to try: the most promising ones, and all that the user named.

    The most promising ones are the best by prediction, the best for each of COMMON_SETTINGS, and
    ALWAYS_TRIED. tries: number of the best by prediction; 0: only the changes that the user named.
    """
    # A change without a prediction counts as a gain of 0. If gains are equal, changes of the loader
    # come first, because another loader may save all of the work of loading.
    loaders = _changes_of("loader", changes)
    ranked = sorted(changes, key=lambda each: (-_prediction_of(each), each not in loaders))
    promising = [each for each in ranked if _may_gain(each)]
    chosen = promising[:tries]
    if tries:
        chosen += [each for each in ranked if each.name in ALWAYS_TRIED]
        chosen += [each for cause in COMMON_SETTINGS for each in _changes_of(cause, promising)[:1]]
    chosen += [each for each in ranked if each.change.is_asked]
    return list({each.name: each for each in chosen}.values())


def _changes_of(setting: str, changes: Sequence[ChangedJob]) -> list[ChangedJob]:
    """The changes of that setting, in their order."""
    return [each for each in changes if each.name.startswith(f"{setting}=")]


def _may_gain(each: ChangedJob) -> bool:
    """True unless the predicted gain is too small to be worth trying."""
    return each.predicted_gain is None or each.predicted_gain.value >= LEAST_GAIN


def _prediction_of(each: ChangedJob | WhatIf) -> float:
    """The predicted gain; 0 without a prediction."""
    return each.predicted_gain.value if each.predicted_gain else 0.0


def try_changed_jobs(
    present: ExplainedJob, chosen: Sequence[ChangedJob], num_rounds: int, seconds: float | None
) -> dict[str, Estimate]:
    """Name of a change -> its realised gain, from rounds that also time the job as it is.

    present: the unchanged job; its expect_steps is called with the number of progress steps that
    remain. chosen: the changes to try; a change is left out if its data can't be prepared. seconds:
    time after which no round begins beyond FEWEST_ROUNDS; None: MOST_SECONDS, see explained_job.py.
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
    """All changes, the best first: the tried ones by their gain, then the others by prediction.

    gains: name of a tried change -> its realised gain. request: that of the unchanged job, for the
    command lines.
    """
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
    """The change with the greatest realised gain that is beyond noise and at least LEAST_GAIN.

    None: no change has such a gain.
    """
    proven = [
        each
        for each in what_ifs
        if each.realised_gain
        and each.realised_gain.low > 0
        and each.realised_gain.value >= LEAST_GAIN
    ]
    return max(proven, key=_gain, default=None)


def _gain(what_if: WhatIf) -> float:
    """The realised gain; 0 for a change that was not tried."""
    return what_if.realised_gain.value if what_if.realised_gain else 0.0


def _place(what_if: WhatIf) -> tuple[bool, float]:
    """The key for sorting: tried changes first, the greatest gain first."""
    gain = what_if.realised_gain
    return gain is None, -(gain.value if gain else _prediction_of(what_if))
