"""Print the outcome of a sweep: the table of results, and the places of its files.

If all jobs lack trials for the same reason, the reason is printed in place of both.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load, load_timelines
from fastloop.core.text import plain_reason, shorten_words
from fastloop.core.types import FailureKind
from fastloop.reporting.baseline import find_baseline
from fastloop.reporting.report_files import write_report
from fastloop.reporting.sweep_files import file_lines
from fastloop.reporting.terminal_table import WIDTH, format_tables
from fastloop.sweep.job_state import DETAILS
from fastloop.sweep.request import JobRequest
from fastloop.sweep.sweep_job import SweepJob, sweep_job
from fastloop.sweep.time_spent import describe_time
from fastloop.sweep.tracking import SweepTracker


def print_measured(requests: Sequence[JobRequest]) -> int:
    """Print the results that other processes have written, and return the exit status."""
    request = requests[0]
    jobs = [sweep_job(each, each.name, index) for index, each in enumerate(requests)]
    results = []
    for job in jobs:
        result = load(job.folder) if (job.folder / RESULT_FILE).exists() else job.result
        if result.status == "RUNNING":
            reason = "no result: its process has not started, or has ended early"
            result = replace(result, status_reason=reason)
        results.append(result)
    tracking = SweepTracker(request.tracker, request.sweep_folder)
    print_results(results, request.sweep.baseline)
    return print_places(results, jobs[0], request, tracking)


def print_results(
    results: Sequence[Result], baseline: str | None, stages: Mapping[str, float] | None = None
) -> None:
    """Print the table, and a line that describes how the command spent its time.

    If all jobs lack trials for the same reason, nothing is printed here, because `print_places`
    prints that reason.

    baseline: name of the job or loader that ratios refer to; None: `summarize` chooses one. stages:
    name of each stage of this command -> its seconds; None: this command has measured nothing.
    """
    if _has_nothing(results):
        return
    width = _width()
    print(format_tables(results, baseline or "", width))
    if stages:
        print("\n" + textwrap.fill(describe_time(results, stages), width or WIDTH))
    sys.stdout.flush()


def print_places(
    results: Sequence[Result], first: SweepJob, request: JobRequest, tracking: SweepTracker
) -> int:
    """Print the places of files, report and tracker, and return the command's exit status.

    If all jobs lack trials for the same reason, that reason is printed instead.

    first, request: the first job of the sweep, and its request.
    """
    if _has_nothing(results):
        print(_failure_line(results[0], first.folder / DETAILS), file=sys.stderr)
        return 1
    print(f"\n{file_lines(results, str(request.sweep_folder), _width() or WIDTH)}")
    if request.sweep.report:
        print(f"report: {_write_report(results, request, tracking)}")
    print(tracking.where(first.result.tags["sweep"]))
    return _exit_status(results)


def _has_nothing(results: Sequence[Result]) -> bool:
    """True if no job has a trial, and there is one job only or all have failed for one reason.

    The reason then replaces the table.
    """
    if any(each.trials for each in results):
        return False
    outcomes = {(each.status, each.status_reason) for each in results}
    return len(results) == 1 or (len(outcomes) == 1 and results[0].status == "FAILED")


def _failure_line(result: Result, details: Path) -> str:
    """The reason why a job failed, with the path of its details unless the reason is enough.

    details: path at which there may be a file with the traceback.
    """
    reason, kind = result.status_reason, result.failure_kind
    plain = plain_reason(reason)
    if plain != shorten_words(reason) or (kind and kind.is_verdict):
        return plain
    return f"{plain}; see {details}" if details.exists() else plain


def _width() -> int:
    """Columns of the terminal; 0 if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _write_report(results: Sequence[Result], request: JobRequest, tracking: SweepTracker) -> Path:
    """Write the report, attach it to the tracker's runs, and return the path of its page."""
    baseline = request.sweep.baseline or ""
    names = {result.name: result.loader for result in results if result.status == "FINISHED"}
    # If the baseline has failed, which its row says, `summarize` chooses another one.
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
    # Unsupported jobs among others are not failures: `loader=glob(*)` has loaders that need a GPU.
    unfinished = [result.failure_kind for result in results if result.status != "FINISHED"]
    failed = [kind for kind in unfinished if kind != FailureKind.UNSUPPORTED]
    return int(bool(failed) or len(unfinished) == len(results))
