"""Run a sweep, or a single job of a sweep, while no other fastloop measures on this machine.

A lock of the machine ensures that, unless allow_concurrent=true is given without wait=true.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fastloop.core.outputs_folder import claim_sweep_folder, make_sweep_folder, remove_unused
from fastloop.core.ranking import explain_no_ranks
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE
from fastloop.core.types import UsageError
from fastloop.processes.signals import handle_signals, signal_handling
from fastloop.processes.torchrun_env import torchrun_process
from fastloop.sweep.early_check import check_requests
from fastloop.sweep.explain_stage import ExplainJob
from fastloop.sweep.followers import assemble
from fastloop.sweep.forecast import describe_plan, print_once
from fastloop.sweep.job_identity import config_hash
from fastloop.sweep.job_names import job_names
from fastloop.sweep.machine_lock import lock_unless_concurrent
from fastloop.sweep.print_outcome import print_places, print_results
from fastloop.sweep.progress import Progress, show_progress
from fastloop.sweep.request import JobRequest
from fastloop.sweep.resume import (
    describe_kept_trials,
    find_earlier_sweep,
    with_earlier_results,
)
from fastloop.sweep.run_rounds import num_progress_steps, run_sweep
from fastloop.sweep.sweep_job import SweepJob, sweep_job
from fastloop.sweep.tracking import SweepTracker


def run_locked_sweep(requests: Sequence[JobRequest], explain_job: ExplainJob | None) -> int:
    """Run the jobs of the requests as one sweep, print the results, and return the exit status.

    explain_job: the function that explains a job if explain=true; None: no job is explained. Raises
    MachineBusy if the lock can't be taken. Raises UsageError if not all ranks join with the same
    jobs, if there is no sweep to resume, if another command writes to the sweep's folder, or if the
    sweep would have to wait for the lock and none of its jobs can run.
    """
    make_sweep_folder(requests[0].sweep_folder)
    process = torchrun_process()
    if process and (message := assemble(process, requests)):
        raise UsageError(message)
    with lock_unless_concurrent(requests[0].sweep, lambda: check_requests(requests)):
        folder = _find_folder(requests)
        with claim_sweep_folder(folder):
            requests = [replace(each, sweep_folder=folder) for each in requests]
            jobs = _make_jobs(requests)
            print_once(describe_plan([each.config for each in requests]))
            return _run(jobs, requests[0], explain_job)


def _find_folder(requests: Sequence[JobRequest]) -> Path:
    """The sweep's folder; with `resume`, the folder of the earlier sweep that is continued."""
    request = requests[0]
    if not request.sweep.resume:
        return request.sweep_folder
    hashes = {config_hash(each) for each in requests}
    folder = find_earlier_sweep(request.sweep.resume, hashes)
    remove_unused(request.sweep_folder)
    return folder


def _make_jobs(requests: Sequence[JobRequest]) -> list[SweepJob]:
    """The jobs of the sweep; with `resume`, each with its result in the earlier sweep."""
    named = zip(requests, job_names(requests), strict=True)
    jobs = [sweep_job(request, name, index) for index, (request, name) in enumerate(named)]
    first = requests[0]
    return with_earlier_results(jobs, first.sweep_folder) if first.sweep.resume else jobs


def _run(jobs: Sequence[SweepJob], request: JobRequest, explain_job: ExplainJob | None) -> int:
    """Run the jobs, print the results and the places of files, and return the exit status.

    request: the first request of the sweep.
    """
    if reason := explain_no_ranks([job.job.trials for job in jobs]):
        print(reason, file=sys.stderr)
    tracking = SweepTracker(request.tracker, request.sweep_folder)
    handle_signals(lambda: describe_kept_trials(jobs, request.sweep_folder))
    with show_progress(num_progress_steps(jobs, request.sweep)) as progress:

        def show_results(results: list[Result], stages: Mapping[str, float]) -> None:
            # A bar would draw over the table.
            progress.close()
            print_results(results, request.sweep.baseline, stages)

        telling = replace(progress, show_results=show_results)
        results = run_sweep(jobs, request.sweep, tracking, telling, explain_job=explain_job)
    return print_places(results, jobs[0], request, tracking)


def run_locked_job(request: JobRequest) -> None:
    """Run one job of a sweep, and print its status; raises MachineBusy if the lock can't be
    taken."""
    jobs = [sweep_job(request, request.name, 0)]
    # If there is a result, a cluster's scheduler has restarted the job, which continues from it.
    if (request.folder / RESULT_FILE).exists():
        jobs = with_earlier_results(jobs, request.sweep_folder)
    tracking = SweepTracker(request.tracker, request.sweep_folder)
    with signal_handling(lambda: describe_kept_trials(jobs)), lock_unless_concurrent(request.sweep):
        (result,) = run_sweep(jobs, request.sweep, tracking, Progress())
    print(f"{result.name}: {result.status} {result.status_reason}".rstrip(), file=sys.stderr)
