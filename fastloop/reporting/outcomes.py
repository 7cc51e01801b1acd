"""The end of a job, in the words of tables and the terminal."""

from __future__ import annotations

from fastloop.core.result import Result
from fastloop.core.types import FailureKind

SKIPPED = "skipped"


def outcome(result: Result) -> tuple[str, str]:
    """The job's status and its reason."""
    # a job that can't run here has the status FAILED, but failed at nothing: it was skipped
    if result.failure_kind is FailureKind.UNSUPPORTED:
        return SKIPPED, result.status_reason.removeprefix(f"{FailureKind.UNSUPPORTED}: ")
    return result.status, result.status_reason
