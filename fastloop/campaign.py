"""Jobs in rounds: prepare, then trial k of every job in round k, then one instrumented pass a job.

A busy minute of the machine hits every job alike. What finishes is written at once; what fails
becomes a row with its reason, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from tqdm import tqdm

from fastloop.caveats import caveats
from fastloop.ends import Launcher
from fastloop.entry import Entry, Row
from fastloop.environment import describe
from fastloop.files import file_fingerprint, fingerprint, source_of
from fastloop.job import Job, check_support
from fastloop.of_ranks import one_pass, one_trial
from fastloop.prepared import prepare
from fastloop.profiling import profile_paths
from fastloop.protocols import OnDisk, Streamed
from fastloop.result import Result
from fastloop.resume import fail, take_up
from fastloop.schedule import rounds
from fastloop.spans import now_ns, wall_ms
from fastloop.tracking import Tracking
from fastloop.trial import run_instrumented, run_profiled, run_trial
from fastloop.types import JobFailed, Prepared, Unsupported, option

ALONE_TRIALS = 3
"""Of one process, for a job of several that has none of one process beside it."""
NOTED = (
    *("dataset", "fingerprint", "content", "alike", "pixels_off", "key"),
    *("num_samples", "sample_nbytes", "prepare_s", "disk_mib", "skipped"),
)
"""Fields of a result that are known once its data is prepared."""


@option
class Sweep:
    """What belongs to a sweep and not to one of its jobs."""

    baseline: str | None
    interleave: bool
    report: bool
    resume: str | None
    retry_failed: bool
    wait: bool
    allow_concurrent: bool
    profile: bool


def run_campaign(
    entries: Sequence[Entry],
    sweep: Sweep,
    tracking: Tracking,
    advance: Callable[[str], None],
) -> list[Result]:
    """The results of all entries, in their order; `advance` is called as each step begins."""
    rows = [Row(entry, tracking) for entry in entries]
    session_ms = wall_ms()
    try:
        _prepare_all(rows, sweep, advance)
        for number, taking_part in _turns([row for row in rows if row.runs], sweep.interleave):
            _run_round(taking_part, (number, session_ms), advance)
        for row in rows:
            if row.runs and row.entry.launcher.world_size > 1:
                _scale(row, rows, advance)
            if row.runs:
                _look_into(row, advance)
            if row.runs and sweep.profile:
                _profile(row, advance)
        for row in rows:
            if row.runs:
                row.update(flags=caveats(row.result, [one.result for one in rows]))
                row.end("FINISHED")
    except BaseException as error:
        asked_for = isinstance(error, KeyboardInterrupt | SystemExit)
        for row in rows:
            with contextlib.suppress(OSError):  # that may be what has ended it all
                status = "KILLED" if asked_for else "FAILED"
                row.cut_short(status, f"{type(error).__name__}: {error}")
        raise
    return [row.result for row in rows]


def num_steps(entries: Sequence[Entry], sweep: Sweep) -> int:
    """How often run_campaign calls `advance` when nothing fails."""
    left = [len(entry.earlier.trials) if entry.earlier else 0 for entry in entries]
    passes = 1 + sweep.profile
    alone = [entry.job for entry in entries if entry.launcher.world_size == 1]
    steps = [
        1
        + entry.job.trials
        + passes * len(entry.job.benchmark)
        + (
            _alone_trials(entry.job)
            if entry.launcher.world_size > 1 and entry.job not in alone
            else 0
        )
        for entry in entries
    ]
    return sum(max(1, all_ - done) for all_, done in zip(steps, left, strict=True))


def _prepare_all(rows: list[Row], sweep: Sweep, advance: Callable[[str], None]) -> None:
    done: dict[str, Prepared | JobFailed] = {}
    for row in rows:
        job, launcher = row.entry.job, row.entry.launcher
        advance(f"preparing {row.result.name}")
        now = replace(row.entry.result, environment=describe())
        if row.is_taken_up:
            row.result = now
            row.begin()
        key = repr((job.dataset, job.loader.store, job.collate.tolerant))
        try:
            launcher.check(check_support(job, launcher.world_size))
            if key not in done:
                done[key] = _prepared_or_failure(job, launcher)
            outcome = done[key]
        except Unsupported as why:
            outcome = JobFailed(f"unsupported: {why}")
        if isinstance(outcome, JobFailed):
            said = fail(row, outcome.reason, outcome.details)
        else:
            said = _set_up(row, now, outcome, sweep.retry_failed)
        if said:
            tqdm.write(said, file=sys.stderr)


def _set_up(row: Row, now: Result, prepared: Prepared, retry_failed: bool) -> str:
    """Make the row ready for its trials; the text says what was left of it and is not used."""
    row.prepared = prepared
    noted = _noted(now, row.entry.job, prepared)
    if row.is_taken_up:
        row.update(**{name: getattr(noted, name) for name in NOTED})
        return ""
    said = take_up(row, noted, retry_failed)
    if row.runs:
        row.begin()
    return said


def _prepared_or_failure(job: Job, launcher: Launcher) -> Prepared | JobFailed:
    arguments = (job.dataset, job.loader.store, job.collate.tolerant)
    # what a loader of one's own brings may have no end
    limit_s = job.trial_timeout_s if isinstance(job.dataset, Streamed) else None
    try:
        return launcher.call(prepare, *arguments, timeout_s=limit_s)
    except JobFailed as failure:
        return failure


def _noted(result: Result, job: Job, prepared: Prepared) -> Result:
    """The result with what is known of its data."""
    return replace(
        result,
        dataset=prepared.label,
        fingerprint=prepared.fingerprint,
        content=prepared.content,
        alike=prepared.alike,
        pixels_off=prepared.pixels_off,
        key=_trial_key(result, job, prepared),
        num_samples=prepared.num_samples,
        sample_nbytes=prepared.sample_nbytes,
        prepare_s=prepared.seconds,
        disk_mib=prepared.disk_mib,
        skipped=[why for _, why in prepared.broken],
    )


def _trial_key(result: Result, job: Job, prepared: Prepared) -> str:
    """The same for trials that may stand for each other."""
    machine = result.environment
    same = ("code", "versions", "python", "host", "cpu", "cores_usable", "gpus")
    options = (job.loader, job.loader.store, job.order, job.placement, job.model)
    options = (*options, job.decoder, job.transform, job.collate, job.execution)
    order_files = job.order.files() if isinstance(job.order, OnDisk) else []
    return fingerprint(
        result.tags["config_hash"],
        prepared.fingerprint,
        [machine[name] for name in same],
        [source_of(one) for one in (*options, *job.benchmark.values())],  # some are the user's own
        [file_fingerprint(path) for path in order_files],
    )


def _turns(rows: list[Row], interleave: bool) -> list[tuple[int, list[Row]]]:
    """(number of a trial, the rows that run it), in the order in which they are run."""
    if not interleave:
        return [(number, [row]) for row in rows for number in range(row.entry.job.trials)]
    order = rounds([row.entry.job.trials for row in rows])
    return [(number, [rows[place] for place in one]) for number, one in enumerate(order)]


def _run_round(
    rows: list[Row], number_and_session: tuple[int, int], advance: Callable[[str], None]
) -> None:
    number, session_ms = number_and_session
    rows = [row for row in rows if row.runs and number not in row.done]
    names = [row.result.name for row in rows]
    for row in rows:
        advance(f"trial {number + 1} of {row.result.name}")
        job = row.entry.job
        arguments = (run_trial, job, row.prepared, number, now_ns())
        try:
            ranks = row.entry.launcher.call_ranks(*arguments, timeout_s=job.trial_timeout_s)
        except JobFailed as failure:
            _fail(row, failure)
        else:
            trial = replace(one_trial([trial for trial, _ in ranks]), session_ms=session_ms)
            row.update(trials=[*row.result.trials, trial], rounds=[*row.result.rounds, names])


def _fail(row: Row, failure: JobFailed) -> None:
    """End the row; of several ranks the traceback is shown of the one that has failed."""
    verdict = failure.reason.startswith(("unsupported", "invalid"))
    if failure.details and row.entry.launcher.world_size > 1 and not verdict:
        tqdm.write(failure.details.rstrip(), file=sys.stderr)
    row.end("FAILED", failure.reason, failure.details)


def _scale(row: Row, rows: list[Row], advance: Callable[[str], None]) -> None:
    """What one process does, whom several are told against: that of the sweep, or trials of its
    own."""
    job, launcher = row.entry.job, row.entry.launcher
    alone = [
        one.result.trials
        for one in rows
        if one.entry.job == job and one.entry.launcher.world_size == 1 and one.runs
    ]
    trials = alone[0] if alone else []
    try:
        for number in range(0 if alone or row.result.one_process else _alone_trials(job)):
            advance(f"one process alone, {number + 1} of {row.result.name}")
            arguments = (run_trial, job, row.prepared, number, now_ns())
            trials = [*trials, launcher.call(*arguments, timeout_s=job.trial_timeout_s)]
    except JobFailed as failure:  # what several have done is good
        tqdm.write(f"{row.result.name}: {failure.reason} (one process alone)", file=sys.stderr)
    rates = {
        name: [trial.benchmarks[name].samples_per_s for trial in trials] for name in job.benchmark
    }
    row.update(one_process=rates if trials else row.result.one_process)


def _alone_trials(job: Job) -> int:
    return min(job.trials, ALONE_TRIALS)


def _look_into(row: Row, advance: Callable[[str], None]) -> None:
    job = row.entry.job
    for name in job.benchmark:
        if name in row.result.attribution:
            continue
        advance(f"looking into {row.result.name}, {name}")
        arguments = (run_instrumented, job, row.prepared, name)
        limit_s = job.trial_timeout_s
        try:
            ranks = row.entry.launcher.call_ranks(*arguments, timeout_s=limit_s, observed=True)
        except JobFailed as failure:
            _fail(row, failure)
            return
        row.update(attribution=row.result.attribution | {name: one_pass(ranks)})


def _profile(row: Row, advance: Callable[[str], None]) -> None:
    job, folder = row.entry.job, row.entry.folder
    for name in job.benchmark:
        if all(path.exists() for path in profile_paths(folder, name)):
            continue
        advance(f"profiling {row.result.name}, {name}")
        arguments = (run_profiled, job, row.prepared, name, folder)
        try:
            row.entry.launcher.call_ranks(*arguments, timeout_s=job.trial_timeout_s)
        except JobFailed as failure:
            _fail(row, failure)
            return
