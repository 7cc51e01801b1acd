"""`fastloop explain`, and the changes that it proposes, run on a job through their Python
functions."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastloop.config.compose import compose_all, compose_job
from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.explain.explain_job import check_request, explain_job
from fastloop.explain.explained_job import ExplainedJob, count_batches, time_side_by_side
from fastloop.explain.explanation_text import to_json
from fastloop.explain.job_facts import benchmark_name
from fastloop.sweep.prepare_job import prepare_job
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job

AS_IS = "as it is"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The explanation of a job, and its cost."""

    content: dict[str, Any]
    """The content of explain.json."""
    seconds: float
    """Seconds until the verdict."""

    @property
    def changes(self) -> list[str]:
        """The changes of settings for which there is a prediction."""
        what_ifs = self.content["what_ifs"]
        return [each["change"] for each in what_ifs if each["predicted_gain"] is not None]

    def what_if(self, change: str) -> dict[str, Any]:
        """The entry of explain.json about a change."""
        (what_if,) = (each for each in self.content["what_ifs"] if each["change"] == change)
        return what_if


def request_of(overrides: Sequence[str]) -> JobRequest:
    """The request that `fastloop explain` makes of these overrides."""
    arguments, sys.argv[1:] = sys.argv[1:], [*overrides]
    try:
        return check_request(compose_all(lambda _: 1))
    finally:
        sys.argv[1:] = arguments


def judge_job(request: JobRequest) -> Judgement:
    """Explain the job as `fastloop explain` does."""
    start_ns = now_ns()
    with TemporaryDirectory() as folder:
        explanation = explain_job(request, _compose, Progress(), Path(folder))
    seconds = seconds_between(start_ns, now_ns())
    return Judgement(content=json.loads(to_json(explanation)), seconds=seconds)


def carry_out(
    request: JobRequest, judgement: Judgement, changes: Sequence[str]
) -> list[dict[str, Any]]:
    """For each change, its prediction, and its time relative to the unchanged job's, in rounds of
    both jobs."""
    jobs = {AS_IS: request.job} | {each: changed_job(judgement, each) for each in changes}
    seconds = time_jobs(request, jobs, request.job.most_trials)
    rows = []
    for change in changes:
        ratio = stats.ratio_or_range(seconds[change], seconds[AS_IS])
        # Neither list is empty, so there is a ratio.
        assert ratio is not None
        rows.append(judgement.what_if(change) | {"realised_ratio": asdict(ratio)})
    return rows


def changed_job(judgement: Judgement, change: str) -> Job:
    """The job with the change, as its command composes it."""
    return _compose(shlex.split(judgement.what_if(change)["command"])[3:])


def time_jobs(
    request: JobRequest, jobs: Mapping[str, Job], num_rounds: int
) -> dict[str, list[float]]:
    """Seconds of an epoch of each job, by its name, in interleaved rounds.

    jobs: the unchanged one is named AS_IS; an epoch has as many batches as one of it.
    """
    ready = {name: _ready(request, job) for name, job in jobs.items()}
    times = time_side_by_side(ready, num_rounds, None)
    whole = ready[AS_IS].whole_batches
    return {name: [each[name].whole_epoch_s(whole) for each in times] for name in ready}


def _ready(request: JobRequest, job: Job) -> ExplainedJob:
    name = benchmark_name(job)
    job = replace(job, benchmark={name: job.benchmark[name]})
    prepared = prepare_job(job, request.launcher)
    return ExplainedJob(
        job=job,
        prepared=prepared,
        launcher=request.launcher,
        begin_step=_say_nothing,
        whole_batches=count_batches(job, prepared),
    )


def _compose(overrides: Sequence[str]) -> Job:
    return compose_job(*overrides)


def _say_nothing(_: str) -> None:
    pass
