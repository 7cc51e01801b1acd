"""Explain each job of a sweep after the last round, if explain=true.

The function that explains a job is in fastloop/explain/, which imports this folder. The function
can't be imported here, so the caller passes it in.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

from fastloop.core.atomic_files import write_text
from fastloop.core.explanation import Explanation
from fastloop.core.result import Result
from fastloop.core.types import JobFailed, Unsupported, UsageError
from fastloop.core.user_code import error_line
from fastloop.sweep.forecast import num_passes
from fastloop.sweep.job_state import DETAILS, JobState
from fastloop.sweep.progress import Progress
from fastloop.sweep.sweep_job import SweepJob
from fastloop.trial.job import Job

ExplainJob = Callable[[SweepJob, Callable[[str], None]], Explanation]
"""A function (job, begin_step) -> the job's explanation. It calls begin_step with the name of each
step that begins, and raises UsageError, Unsupported or JobFailed if it can't explain the job."""

CAVEAT = "not explained"
"""Beginning of the caveat of a job that could not be explained."""


def explain_all(
    states: Sequence[JobState], explain_job: ExplainJob | None, progress: Progress
) -> None:
    """Record the explanation of each job that has none, or the reason why it can't be explained.

    explain_job: explains a job; None: Hydra's launcher can't, and the recorded reason says so.
    """
    for state in states:
        if state.is_running and state.result.explanation is None:
            _explain(state, explain_job, progress)
            outcome = _word(state.result) or f"{CAVEAT}: {state.unexplained}"
            progress.end_round(f"{state.result.name}: {outcome}")


def _explain(state: JobState, explain_job: ExplainJob | None, progress: Progress) -> None:
    """Record the explanation of a job, or the reason why it can't be explained."""

    def begin_step(step: str) -> None:
        progress.begin_step(f"{step}, {state.result.name}")

    try:
        if explain_job is None:
            raise UsageError("only hydra/launcher=basic explains jobs")
        explanation = explain_job(state.entry, begin_step)
    except (UsageError, Unsupported, JobFailed) as error:
        state.unexplained = str(error)
    # The trials stay valid, even if the explanation fails with an unexpected error.
    except Exception as error:
        state.unexplained = error_line(error)
        write_text(state.entry.folder / DETAILS, traceback.format_exc())
    else:
        state.update(explanation=explanation)


def _word(result: Result) -> str:
    """The verdict in one word, such as `transform`; empty without an explanation."""
    return result.explanation.verdict.word if result.explanation else ""


def explanation_caveats(state: JobState) -> list[str]:
    """The caveat of a job that could not be explained; empty for other jobs."""
    return [f"{CAVEAT}: {state.unexplained}"] if state.unexplained else []


def lacks_explanation(result: Result) -> bool:
    """True if the job has not been explained, and no caveat says that it can't be explained."""
    return result.explanation is None and not any(
        caveat.startswith(CAVEAT) for caveat in result.caveats
    )


def num_explain_steps(job: Job, tries: int) -> int:
    """Approximate number of steps in which a job is explained.

    tries: number of changes that are tried.
    """
    return num_passes(job.most_trials, tries, job.device)
