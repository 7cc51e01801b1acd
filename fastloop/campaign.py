"""Jobs in rounds: prepare, then trial k of every job in round k, then one instrumented pass a job.

A busy minute of the machine hits every job alike. What finishes is written at once; what fails
becomes a row with its reason, and the rest goes on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fastloop.digest import nbytes_of
from fastloop.environment import describe
from fastloop.files import fingerprint, write_text
from fastloop.job import Job, check_support, run_instrumented, run_trial
from fastloop.prepared import prepare
from fastloop.result import Result, save
from fastloop.spans import now_ns
from fastloop.types import JobFailed, Launcher, Prepared, Tracker, Unsupported


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job of a sweep, where its files go, and what they say about it before it is run."""

    job: Job
    folder: Path
    config_yaml: str
    result: Result


class Row:
    """One entry on its way through the rounds: its result so far, on disk after every change."""

    def __init__(self, entry: Entry, tracker: Tracker) -> None:
        self.entry = entry
        self.tracker = tracker
        self.result = entry.result
        self.prepared: Prepared | None = None

    def update(self, **changes: object) -> None:
        """Change the result and write it."""
        self.result = replace(self.result, **changes)  # pyright: ignore[reportArgumentType]
        save(self.result, self.entry.folder)

    def start(self, environment: dict) -> None:
        """Write what is known before anything is measured, and begin the tracker's run."""
        write_text(self.entry.folder / "config.yaml", self.entry.config_yaml)
        self.update(environment=environment)
        with self._told_if_it_fails():
            self.update(run_id=self.tracker.start(self.result))

    def end(self, status: str, reason: str = "", details: str = "") -> None:
        """Write the result's end, then tell the tracker: files first."""
        self.update(status=status, status_reason=reason)
        if details:
            write_text(self.entry.folder / "traceback.txt", details)
        if self.result.run_id:
            with self._told_if_it_fails():
                self.tracker.finish(self.result, self.entry.folder)
                self.update(recorded=True)

    @contextmanager
    def _told_if_it_fails(self) -> Iterator[None]:
        """A lost tracker loses no measurement: say so, and go on with the files."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {said[0]}"
            print(f"{self.result.name} is not in the tracker: {why}", file=sys.stderr)
            print(f"later: python -m fastloop.record {self.entry.folder}", file=sys.stderr)

    @property
    def runs(self) -> bool:
        """True until it has ended."""
        return self.result.status == "RUNNING"


def run_campaign(
    entries: Sequence[Entry], launcher: Launcher, tracker: Tracker, advance: Callable[[str], None]
) -> list[Result]:
    """The results of all entries, in their order; `advance` is called as each step begins."""
    rows = [Row(entry, tracker) for entry in entries]
    try:
        _prepare_all(rows, launcher, advance)
        for number, names in enumerate(_rounds([row for row in rows if row.runs])):
            _run_round(names, number, launcher, advance)
        for row in rows:
            if row.runs:
                _finish(row, launcher, advance)
    except BaseException as error:
        for row in rows:
            if row.runs:
                row.end("KILLED", type(error).__name__)
        raise
    return [row.result for row in rows]


def num_steps(entries: Sequence[Entry]) -> int:
    """How often run_campaign calls `advance` when nothing fails."""
    return sum(1 + entry.job.trials + len(entry.job.benchmark) for entry in entries)


def _prepare_all(rows: list[Row], launcher: Launcher, advance: Callable[[str], None]) -> None:
    done: dict[str, Prepared | JobFailed] = {}
    for row in rows:
        job = row.entry.job
        advance(f"preparing {row.result.name}")
        row.start(describe())
        try:
            check_support(job)
        except Unsupported as why:
            row.end("FAILED", f"unsupported: {why}")
            continue
        key = repr((job.dataset, job.loader.store))
        if key not in done:
            done[key] = _prepared_or_failure(job, launcher)
        outcome = done[key]
        if isinstance(outcome, JobFailed):
            row.end("FAILED", outcome.reason, outcome.details)
        else:
            _note_prepared(row, outcome)


def _prepared_or_failure(job: Job, launcher: Launcher) -> Prepared | JobFailed:
    try:
        return launcher.call(prepare, job.dataset, job.loader.store)
    except JobFailed as failure:
        return failure


def _note_prepared(row: Row, prepared: Prepared) -> None:
    row.prepared = prepared
    row.update(
        dataset=prepared.label,
        fingerprint=prepared.fingerprint,
        key=_trial_key(row.result, prepared),
        num_samples=prepared.num_samples,
        sample_nbytes=nbytes_of(prepared.sample),
        prepare_s=prepared.seconds,
        disk_mib=prepared.disk_mib,
    )


def _trial_key(result: Result, prepared: Prepared) -> str:
    """The same for trials that may stand for each other."""
    machine = result.environment
    same = ("code", "versions", "python", "host", "cpu", "cores_usable", "gpus")
    return fingerprint(
        result.tags["config_hash"], prepared.fingerprint, [machine[name] for name in same]
    )


def _rounds(rows: list[Row]) -> list[list[Row]]:
    """Round k: every row with a trial k, in random order, each row first equally often."""
    rounds = []
    for number in range(max((row.entry.job.trials for row in rows), default=0)):
        taking_part = [row for row in rows if number < row.entry.job.trials]
        first = taking_part.pop(number % len(taking_part))
        random.Random(number).shuffle(taking_part)
        rounds.append([first, *taking_part])
    return rounds


def _run_round(
    rows: list[Row], number: int, launcher: Launcher, advance: Callable[[str], None]
) -> None:
    names = [row.result.name for row in rows]
    for row in rows:
        if not row.runs:
            continue
        advance(f"trial {number + 1} of {row.result.name}")
        try:
            trial = launcher.call(
                run_trial,
                row.entry.job,
                row.prepared,
                number,
                now_ns(),
                timeout_s=row.entry.job.trial_timeout_s,
            )
        except JobFailed as failure:
            row.end("FAILED", failure.reason, failure.details)
        else:
            row.update(trials=[*row.result.trials, trial], rounds=[*row.result.rounds, names])


def _finish(row: Row, launcher: Launcher, advance: Callable[[str], None]) -> None:
    for name in row.entry.job.benchmark:
        advance(f"looking into {row.result.name}, {name}")
        try:
            seen, peak_mib = launcher.call_observed(
                run_instrumented,
                row.entry.job,
                row.prepared,
                name,
                timeout_s=row.entry.job.trial_timeout_s,
            )
        except JobFailed as failure:
            row.end("FAILED", failure.reason, failure.details)
            return
        found = {name: replace(seen, peak_pss_mib=peak_mib)}
        row.update(attribution=row.result.attribution | found)
    row.end("FINISHED")
