"""Measure a sweep, the jobs of one command, and return the command's exit status.

`measure` takes the requests for the jobs, runs the jobs, prints the table and writes the report.
If one of Hydra's launchers distributes the jobs, `measure_one_job` measures a single job.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.core.outputs_folder import claim_sweep_folder, make_sweep_folder, remove_unused
from fastloop.core.text import plain_reason, shorten_words
from fastloop.core.types import FailureKind, MachineBusy, UsageError
from fastloop.processes.signals import defer_signals, handle_signals, signal_handling
from fastloop.processes.torchrun_env import torchrun_process
from fastloop.sweep.followers import assemble
from fastloop.sweep.forecast import describe_plan, print_once
from fastloop.sweep.job_config import LOADER_BATCH_SIZE, flatten
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.job_names import job_names
from fastloop.sweep.request import JobRequest

# --cfg, --help and completion import this module, and must not wait for torch.
if TYPE_CHECKING:
    from fastloop.core.protocols import Tracker
    from fastloop.core.result import Result
    from fastloop.sweep.explain_stage import ExplainJob
    from fastloop.sweep.job_state import SweepJob
    from fastloop.sweep.settings import SweepSettings
    from fastloop.sweep.tracking import SweepTracker

IMPORTED_LATER = (
    "fastloop.processes.rank_commands",
    "fastloop.reporting.terminal_table",
    "fastloop.sweep.early_check",
    "fastloop.sweep.machine_lock",
    "fastloop.sweep.progress",
    "fastloop.sweep.resume",
    "fastloop.sweep.run_rounds",
    "fastloop.trial.support",
)
"""Modules that `measure` imports beforehand, while signals still end the command at once."""


def measure(requests: Sequence[JobRequest], explain_job: ExplainJob | None = None) -> int:
    """Measure the requests as one sweep, and return the exit status.

    The sweep has the machine to itself, unless allow_concurrent=true.
    explain_job: the function that explains a job if explain=true; None: no job is explained.
    """
    # Hydra's launchers have measured the jobs in other processes already.
    if requests[0].is_done:
        return _print_measured(requests)
    # After handle_signals(), a signal raises an exception. An import that it interrupts leaves half
    # of a module, and can't be repeated. So these modules are imported beforehand.
    for name in IMPORTED_LATER:
        import_module(name)
    _import_tracker(requests[0].tracker)
    handle_signals()
    reason = _rejection(requests)
    if not reason:
        try:
            return _measure_alone(requests, explain_job)
        except (MachineBusy, UsageError) as error:
            reason = str(error)
    remove_unused(requests[0].sweep_folder)
    print(reason, file=sys.stderr)
    return 1


def _measure_alone(requests: Sequence[JobRequest], explain_job: ExplainJob | None) -> int:
    """Measure the requests under the machine's lock, and return the exit status.

    The lock is not taken if others may measure at the same time. Raises MachineBusy if the lock
    can't be taken, and UsageError if not all ranks join with the same jobs, or if there is no sweep
    to resume.
    """
    from fastloop.sweep.early_check import check_requests
    from fastloop.sweep.machine_lock import WAIT_HINT, lock_machine

    settings = requests[0].sweep
    make_sweep_folder(requests[0].sweep_folder)
    if message := _assemble_followers(requests):
        raise UsageError(message)
    lock: AbstractContextManager[Any] = nullcontext()
    if not _may_be_concurrent(settings):
        lock = lock_machine(settings.wait, lambda: check_requests(requests), WAIT_HINT)
    with lock:
        folder = _sweep_folder(requests)
        with claim_sweep_folder(folder):
            jobs, request = _sweep_jobs(requests, folder)
            print_once(describe_plan([each.config for each in requests]))
            return _run(jobs, request, explain_job)


def _import_tracker(tracker: Tracker) -> None:
    """Import the modules that the tracker declares in its TrackerTraits."""
    # These imports cost no time, because the first trial waits for the forkserver, which is still
    # importing. Their errors are ignored here, because they are reported when a run is started. For
    # example, MLflow's import fails for a user without a home folder.
    from fastloop.core.traits import TrackerTraits, traits_of

    with suppress(Exception):
        for name in traits_of(TrackerTraits, tracker).imports:
            import_module(name)


def measure_one_job(requests: Sequence[JobRequest]) -> int:
    """Measure one job of a sweep; other processes or machines measure its other jobs.

    requests: the request for that job alone. Returns 0 once the job's result is written, even if
    the job has failed.
    """
    from fastloop.core.result_io import RESULT_FILE
    from fastloop.sweep.machine_lock import WAIT_HINT, lock_machine
    from fastloop.sweep.progress import Progress
    from fastloop.sweep.resume import describe_kept_trials, with_earlier_results
    from fastloop.sweep.run_rounds import run_sweep
    from fastloop.sweep.tracking import SweepTracker

    (request,) = requests
    settings = request.sweep
    jobs = [sweep_job(request, request.name, 0)]
    # If there is a result, a cluster's scheduler has restarted the job, which continues from it.
    if (request.folder / RESULT_FILE).exists():
        jobs = with_earlier_results(jobs, request.sweep_folder)
    tracking = SweepTracker(request.tracker, request.sweep_folder)
    lock: AbstractContextManager[Any] = nullcontext()
    if not _may_be_concurrent(settings):
        lock = lock_machine(settings.wait, hint=WAIT_HINT)
    with signal_handling(lambda: describe_kept_trials(jobs)), lock:
        (result,) = run_sweep(jobs, settings, tracking, Progress())
    print(f"{result.name}: {result.status} {result.status_reason}".rstrip(), file=sys.stderr)
    return 0


def _run(jobs: Sequence[SweepJob], request: JobRequest, explain_job: ExplainJob | None) -> int:
    """Run the jobs, print the results and the places of files, and return the exit status.

    request: the first request of the sweep.
    """
    from fastloop.core.ranking import explain_no_ranks
    from fastloop.sweep.progress import show_progress
    from fastloop.sweep.resume import describe_kept_trials
    from fastloop.sweep.run_rounds import num_progress_steps, run_sweep
    from fastloop.sweep.tracking import SweepTracker

    if reason := explain_no_ranks([job.job.trials for job in jobs]):
        print(reason, file=sys.stderr)
    tracking = SweepTracker(request.tracker, request.sweep_folder)
    handle_signals(lambda: describe_kept_trials(jobs, request.sweep_folder))
    with show_progress(num_progress_steps(jobs, request.sweep)) as progress:

        def show_results(results: list[Result], stages: Mapping[str, float]) -> None:
            # A bar would draw over the table.
            progress.close()
            print_results(results, request, stages)

        telling = replace(progress, show_results=show_results)
        results = run_sweep(jobs, request.sweep, tracking, telling, explain_job=explain_job)
    return print_places(results, jobs, request, tracking)


def _print_measured(requests: Sequence[JobRequest]) -> int:
    """Print the results that other processes have written, and return the exit status."""
    from fastloop.core.result_io import RESULT_FILE, load
    from fastloop.sweep.tracking import SweepTracker

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
    print_results(results, request)
    return print_places(results, jobs, request, tracking)


def _may_be_concurrent(settings: SweepSettings) -> bool:
    """True if the sweep takes no lock of the machine; with wait=true it always takes the lock."""
    return settings.allow_concurrent and not settings.wait


def _sweep_folder(requests: Sequence[JobRequest]) -> Path:
    """The sweep's folder; with `resume`, the folder of the earlier sweep that is continued."""
    from fastloop.sweep.resume import find_earlier_sweep

    request = requests[0]
    if not request.sweep.resume:
        return request.sweep_folder
    hashes = {config_hash(each) for each in requests}
    folder = find_earlier_sweep(request.sweep.resume, hashes)
    remove_unused(request.sweep_folder)
    return folder


def _sweep_jobs(requests: Sequence[JobRequest], folder: Path) -> tuple[list[SweepJob], JobRequest]:
    """The jobs of the sweep, and its first request, both with `folder` as the sweep's folder."""
    from fastloop.sweep.resume import with_earlier_results

    request = requests[0]
    names = job_names(requests)
    jobs = [
        sweep_job(replace(each, sweep_folder=folder), names[index], index)
        for index, each in enumerate(requests)
    ]
    if request.sweep.resume:
        jobs = with_earlier_results(jobs, folder)
    return jobs, replace(request, sweep_folder=folder)


def _run_params(request: JobRequest) -> dict[str, Any]:
    """The parameters that the tracker logs for a job, by name.

    These are the settings by dotted name, the chosen options by group, and the number of ranks as
    world_size.
    """
    from fastloop.core.traits import LoaderTraits, traits_of

    choices = {group.rpartition("/")[2]: choice for group, choice in request.choices.items()}
    is_honoured = traits_of(LoaderTraits, request.job.loader).honours_batch_size
    batch_size = {} if is_honoured else {"batch_size": LOADER_BATCH_SIZE}
    world_size = {"world_size": request.launcher.world_size}
    return flatten(request.config) | choices | batch_size | world_size


def _run_tags(request: JobRequest) -> dict[str, str]:
    """The tags that the tracker sets for a job, such as its sweep, machine and device, by name."""
    from fastloop.core.machine import describe_machine
    from fastloop.core.types import Unsupported
    from fastloop.processes.rank_group import resolve_device

    # If this machine lacks the device, the tag is the setting; the job fails later, with a reason.
    try:
        device = str(resolve_device(request.job.device))
    except Unsupported:
        device = request.job.device
    machine = describe_machine()
    return {
        "sweep": "/".join(request.sweep_folder.parts[-2:]),
        "config_hash": config_hash(request),
        "git_commit": machine["git_commit"],
        "host": machine["host"],
        "device": device,
        "mlflow.runColor": request.colour,
        **({"concurrent": "true"} if request.sweep.allow_concurrent else {}),
        **({} if request.job.same_data else {"unverified": "true"}),
    }


def sweep_job(request: JobRequest, name: str, index: int) -> SweepJob:
    """The SweepJob of a request, with a result that has no trials yet.

    name: the job's name in tables. index: its position among the command's jobs.
    """
    from fastloop.core.result import Result
    from fastloop.sweep.job_state import SweepJob

    return SweepJob(
        index=index,
        job=request.job,
        launcher=request.launcher,
        folder=request.folder,
        config_yaml=request.config_yaml,
        result=Result(
            name=name,
            loader=request.choices["loader"],
            dataset=request.job.dataset.label,
            params=_run_params(request),
            tags=_run_tags(request),
        ),
    )


def _rejection(requests: Sequence[JobRequest]) -> str:
    """The reason why the sweep can't be measured; empty if it can."""
    from fastloop.reporting.baseline import find_baseline, no_baseline_message
    from fastloop.sweep.early_check import reason_against
    from fastloop.sweep.settings import SWEEP_SETTINGS

    first = requests[0]
    sweep = first.tracker, first.sweep
    if any((request.tracker, request.sweep) != sweep for request in requests):
        names = ", ".join(("tracker", *SWEEP_SETTINGS))
        return f"these settings are the same for all jobs of a sweep: {names}"
    loaders = [request.choices["loader"] for request in requests]
    names = dict(zip(job_names(requests), loaders, strict=True))
    if (baseline := first.sweep.baseline) and not find_baseline(names, baseline):
        return no_baseline_message(names, baseline)
    if first.sweep.seconds and not first.sweep.interleave:
        setting = f"seconds={first.sweep.seconds:g} with interleave=false"
        return f"{setting}: the trials of the first job may leave no time for the others"
    if reason := _reject_auto(requests):
        return reason
    # A single job that can't run gets no table, because the reason is the whole answer.
    reason = reason_against(first.job, first.launcher) if len(requests) == 1 else ""
    return f"unsupported: {reason}" if reason else ""


def _reject_auto(requests: Sequence[JobRequest]) -> str:
    """The reason why trials=auto does not work for these requests; empty if it does."""
    jobs = [request.job for request in requests]
    if not any(job.is_auto for job in jobs):
        return ""
    if numbers := [job.trials for job in jobs if not job.is_auto]:
        both = f"trials=auto,{numbers[0]}"
        return f"{both}: allowed: auto for all jobs of a sweep, as they are ranked together"
    if not requests[0].sweep.interleave:
        return "trials=auto with interleave=false: allowed: interleave=true, as rounds are judged"
    return ""


def _assemble_followers(requests: Sequence[JobRequest]) -> str:
    """Wait for the other ranks under torchrun, and return an error message; empty on success."""
    process = torchrun_process()
    return assemble(process, requests) if process else ""


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
    """Print the table, and a line that describes how the command spent its time.

    If all jobs lack trials for the same reason, nothing is printed here, because `print_places`
    prints that reason.

    request: the first request of the sweep. stages: name of each stage of this command -> its
    seconds; None: this command has measured nothing.
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
    """Print the places of files, report and tracker, and return the exit status.

    If all jobs lack trials for the same reason, that reason is printed instead.
    """
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
    """True if no job has a trial, and there is one job only or all have failed for one reason.

    The reason then replaces the table.
    """
    if any(each.trials for each in results):
        return False
    outcomes = {(each.status, each.status_reason) for each in results}
    return len(results) == 1 or (len(outcomes) == 1 and results[0].status == "FAILED")


def _width() -> int:
    """Columns of the terminal; 0 if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _write_report(results: Sequence[Result], request: JobRequest, tracking: SweepTracker) -> Path:
    """Write the report, attach it to the tracker's runs, and return the path of its page."""
    # An import that a signal interrupts leaves half a module, and can't be repeated.
    with defer_signals():
        from fastloop.core.result_io import load_timelines
        from fastloop.reporting.baseline import find_baseline
        from fastloop.reporting.report_files import write_report

    baseline = request.sweep.baseline or ""
    names = {result.name: result.loader for result in results if result.status == "FINISHED"}
    # If the baseline has failed, which its row says, ratios are to the first job instead.
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
