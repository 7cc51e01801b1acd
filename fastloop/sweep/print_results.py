"""Printing of a sweep's results: the table or the failure, the places of files, the exit status."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.core.text import plain_reason, shorten_words
from fastloop.core.types import FailureKind
from fastloop.processes.lifecycle import defer_signals
from fastloop.sweep.request import JobRequest

# --cfg, --help and completion import this module, and must not wait for torch
if TYPE_CHECKING:
    from fastloop.core.result import Result
    from fastloop.sweep.job_state import SweepJob
    from fastloop.sweep.tracking import SweepTracker


def failure_line(result: Result, details: str) -> str:
    """The reason why a job failed, with the path of its details unless the reason is enough.

    details: path of a file with the traceback; empty if there is none.
    """
    reason, kind = result.status_reason, result.failure_kind
    plain = plain_reason(reason)
    if plain != shorten_words(reason) or (kind and kind.is_verdict):
        return plain
    return f"{plain}; see {details}" if details else plain


def print_results(
    results: Sequence[Result], request: JobRequest, stages: Mapping[str, float] | None = None
) -> None:
    """Print the table, and a line on the use of the time; nothing for a single job without trials.

    stages: seconds of the stages of this command; None: it has measured nothing.
    """
    from fastloop.reporting.terminal_table import WIDTH, format_tables
    from fastloop.sweep.time_spent import describe_time

    if _has_nothing(results):
        return
    width = _width()
    print(format_tables(results, request.sweep.baseline or "", width))
    if stages:
        print("\n" + textwrap.fill(describe_time(results, stages), width or WIDTH))
    sys.stdout.flush()


def print_places(
    results: Sequence[Result], jobs: Sequence[SweepJob], request: JobRequest, tracking: SweepTracker
) -> int:
    """Print the places of files, report and tracker, or the reason why a single job has no trials;
    returns the exit status."""
    from fastloop.reporting.sweep_files import file_lines
    from fastloop.reporting.terminal_table import WIDTH
    from fastloop.sweep.job_state import DETAILS

    if _has_nothing(results):
        details = jobs[0].folder / DETAILS
        print(failure_line(results[0], str(details) if details.exists() else ""), file=sys.stderr)
        return 1
    print(f"\n{file_lines(results, str(request.sweep_folder), _width() or WIDTH)}")
    if request.sweep.report:
        print(f"report: {_write_report(results, request, tracking)}")
    print(tracking.where(jobs[0].result.tags["sweep"]))
    return _exit_status(results)


def _has_nothing(results: Sequence[Result]) -> bool:
    return len(results) == 1 and not results[0].trials


def _width() -> int:
    """Columns of the terminal; 0 if stdout is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _write_report(results: Sequence[Result], request: JobRequest, tracking: SweepTracker) -> Path:
    """Write the report, attach it to the tracker's runs, and return the path of its page."""
    # an import that a signal interrupts leaves half a module, and can't be repeated
    with defer_signals():
        from fastloop.core.result_io import load_timelines
        from fastloop.reporting.job_names import find_baseline
        from fastloop.reporting.report_files import write_report

    baseline = request.sweep.baseline or ""
    names = {result.name: result.loader for result in results if result.status == "FINISHED"}
    # the baseline has failed, as its row says; ratios are to the first job instead
    if not find_baseline(names, baseline):
        baseline = ""
    timelines = load_timelines(request.sweep_folder)
    folder = request.sweep_folder / "report"
    paths = write_report(results, folder, baseline, timelines=timelines)
    for result in results:
        tracking.attach(result, [path for path in paths if path.suffix in (".html", ".png")])
    return paths[0]


def _exit_status(results: Sequence[Result]) -> int:
    """1 if a job failed or none finished, else 0."""
    # unsupported jobs are no failure beside others: `loader=glob(*)` has loaders that need a GPU
    unfinished = [result.failure_kind for result in results if result.status != "FINISHED"]
    failed = [kind for kind in unfinished if kind != FailureKind.UNSUPPORTED]
    return int(bool(failed) or len(unfinished) == len(results))
