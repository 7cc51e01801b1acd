"""Find the possible changes of a job, try the most promising ones, and list their gains.

A what-if is a change with its predicted gain and, if it was tried, its realised gain.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fastloop.core.explanation import WhatIf
from fastloop.core.prepared_data import PreparedData
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
"""Names of the changes that are tried whatever gain is predicted, unless `tries` is 0."""
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

    overrides: the overrides of the job's command line. compose: makes a job from overrides.
    """
    found = []
    for change in changes:
        job = _resize(explained, compose(change.apply(overrides))).job
        if _can_run(job, explained.prepared):
            found.append(ChangedJob(change=change, job=job))
    return found


def _can_run(job: Job, prepared: PreparedData) -> bool:
    """True if this machine and the loader support the job, and a store can hold its samples."""
    try:
        check_support(job)
    except Unsupported:
        return False
    # A store would keep one version of each random sample, and can't hold broken samples.
    return job.loader.store is None or not (prepared.random or prepared.broken)


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
    # If gains are equal, changes of the loader come first, because another loader may save all of
    # the work of loading.
    ranked = sorted(
        changes, key=lambda each: (-_value_of(each.predicted_gain), not _sets(each, "loader"))
    )
    promising = [each for each in ranked if _may_gain(each)]
    chosen = promising[:tries]
    if tries:
        chosen += [each for each in ranked if each.name in ALWAYS_TRIED]
        for setting in COMMON_SETTINGS:
            chosen += [each for each in promising if _sets(each, setting)][:1]
    chosen += [each for each in ranked if each.change.is_asked]
    return list({each.name: each for each in chosen}.values())


def _sets(each: ChangedJob, setting: str) -> bool:
    """True if the change is one of this setting."""
    return each.name.startswith(f"{setting}=")


def _may_gain(each: ChangedJob) -> bool:
    """True unless the predicted gain is too small to be worth trying."""
    return each.predicted_gain is None or each.predicted_gain.value >= LEAST_GAIN


def try_changed_jobs(
    present: ExplainedJob, chosen: Sequence[ChangedJob], num_rounds: int, seconds: float | None
) -> dict[str, Estimate]:
    """Name of a change -> its realised gain, from rounds that also time the job as it is.

    present: the unchanged job; its expect_steps is called with the number of progress steps that
    remain. chosen: the changes to try; a change is left out if its data can't be prepared.
    num_rounds, seconds: as for `time_side_by_side`.
    """
    jobs = {AS_IS: present, **_prepare_changed_jobs(present, chosen)}
    if len(jobs) == 1:
        present.expect_steps(STEPS_AFTER)
        return {}
    present.expect_steps(num_rounds * len(jobs) + STEPS_AFTER)
    epochs = [
        {name: each.whole_epoch_s(jobs[name].whole_batches) for name, each in times.items()}
        for times in time_side_by_side(jobs, num_rounds, seconds)
    ]
    drawn, _ = draw_seconds(epochs)
    present_s = drawn.pop(AS_IS)
    return {name: estimate_from(1 - draws / present_s) for name, draws in drawn.items()}


def _prepare_changed_jobs(
    present: ExplainedJob, chosen: Sequence[ChangedJob]
) -> dict[str, ExplainedJob]:
    """Prepare the data of the changed jobs; returns the jobs by the names of their changes.

    A job is left out if its data can't be prepared.
    """
    jobs = {}
    for each in chosen:
        try:
            prepared = prepare_job(each.job, present.launcher)
        except JobFailed:
            # The store of another loader can't hold these samples.
            continue
        jobs[each.name] = replace(_resize(present, each.job), prepared=prepared)
    return jobs


def list_what_ifs(
    changes: Sequence[ChangedJob], gains: dict[str, Estimate], request: JobRequest
) -> tuple[WhatIf, ...]:
    """All changes, the best first: the tried ones by their gain, then the others by prediction.

    gains: name of a tried change -> its realised gain. request: the request of the unchanged job,
    for the command lines.
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
    return tuple(sorted(what_ifs, key=_rank))


def _rank(what_if: WhatIf) -> tuple[bool, float]:
    """The key for sorting: tried changes first, the greatest gain first."""
    gain = what_if.realised_gain or what_if.predicted_gain
    return what_if.realised_gain is None, -_value_of(gain)


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
    return max(proven, key=lambda each: _value_of(each.realised_gain), default=None)


def _value_of(gain: Estimate | None) -> float:
    """The gain; a gain that is not known counts as 0."""
    return gain.value if gain else 0.0
