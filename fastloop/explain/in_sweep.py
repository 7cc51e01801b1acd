"""Explanations of the jobs of a sweep, with explain=true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastloop.core.explanation import EXPLANATION_FILE, Explanation
from fastloop.core.files import write_text
from fastloop.explain.job_findings import to_json
from fastloop.explain.of_job import check_request, explain
from fastloop.sweep.explain_stage import ExplainJob
from fastloop.sweep.job_state import SweepJob
from fastloop.sweep.progress import Progress
from fastloop.sweep.request import JobRequest
from fastloop.trial.job import Job


def job_explainer(
    requests: Sequence[JobRequest], compose: Callable[[Sequence[str]], Job]
) -> ExplainJob:
    """A function that explains a job of the sweep and writes explain.json to the job's folder.

    compose: the job of a list of overrides.
    """

    def explain_job(entry: SweepJob, begin_step: Callable[[str], None]) -> Explanation:
        request = check_request([requests[entry.index]])
        progress = Progress(begin_step=begin_step)  # the bar counts the steps of all jobs
        explanation = explain(request, compose, progress, entry.folder)
        write_text(entry.folder / EXPLANATION_FILE, to_json(explanation))
        return explanation

    return explain_job
