"""Resume an interrupted sweep: find its folder, and keep the trials that are still comparable.

Trials are comparable if their data, code, library versions and machine are the present ones.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from fastloop.core.outputs_folder import outputs_folder, sweep_folders
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load, load_result
from fastloop.core.types import Failure, UsageError
from fastloop.sweep.explain_stage import lacks_explanation
from fastloop.sweep.job_state import JobState
from fastloop.sweep.settings import SweepSettings
from fastloop.sweep.sweep_job import SweepJob

RESULTS = f"*/{RESULT_FILE}"
"""Pattern of the results of a sweep's jobs, in the sweep's folder."""
LAST = "last"
"""Value of `resume` for the newest sweep with a job of this command."""
PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
"""A path without characters that have another meaning for the shell or for Hydra."""
KEPT_FIELDS = ("trials", "rounds", "attribution", "explanation", "run_id")
"""Fields of a result that are taken over from the interrupted sweep."""
MACHINE_FACTS = ("host", "cpu", "cores_usable", "gpus")
"""Facts by which a machine is recognised as the same one."""


def find_earlier_sweep(name: str, hashes: set[str]) -> Path:
    """Find the folder of the sweep that `resume=` names.

    name: the folder's path, or `last` for the newest sweep with one of this command's jobs. hashes:
    the config_hash of each job of this command. Raises UsageError if there is no such sweep.
    """
    if name == LAST:
        return _find_newest_sweep(hashes)
    folder = Path(name).absolute()
    if not any(folder.glob(RESULTS)):
        raise UsageError(f"resume={name}: no result.json of a sweep in {folder}")
    return folder


def _find_newest_sweep(hashes: set[str]) -> Path:
    """Find the folder of the newest sweep that has a job with one of these hashes.

    Raises UsageError if there is no such sweep.
    """
    folders = [each for each in reversed(sweep_folders()) if any(each.glob(RESULTS))]
    if not folders:
        raise UsageError(f"resume=last: no result.json of a sweep in {outputs_folder()}")
    for folder in folders:
        if not hashes.isdisjoint(_load_results(folder)):
            return folder
    raise UsageError(
        f"resume=last: none of the {len(folders)} sweeps in {outputs_folder()} has a result of "
        "this command's jobs"
    )


def with_earlier_results(entries: Sequence[SweepJob], folder: Path) -> list[SweepJob]:
    """The jobs, each with its earlier result and the folder of that result.

    A job without an earlier result gets a new folder. folder: the folder of the earlier sweep.
    Raises UsageError if it has no result of any of these jobs.
    """
    results = _load_results(folder)
    continued = []
    for number, entry in enumerate(entries):
        # Jobs with equal hashes take the results in the order of their folders.
        same = results.get(entry.result.tags["config_hash"], [])
        # The id of this process makes the name of a new folder different from all earlier ones.
        job_folder, earlier = same.pop(0) if same else (folder / f"{number}-{os.getpid()}", None)
        continued.append(replace(entry, folder=job_folder, earlier=earlier))
    if not any(entry.earlier for entry in continued):
        raise UsageError(f"resume={folder}: it has no result of this command's jobs")
    return continued


def _load_results(folder: Path) -> dict[str, list[tuple[Path, Result]]]:
    """Hash of a configuration -> its results in the sweep's folder, each after its own folder."""
    # The folders of jobs are numbered. Sorting by the length of the name first puts 2 before 10.
    results: dict[str, list[tuple[Path, Result]]] = {}
    paths = folder.glob(RESULTS)
    for path in sorted(paths, key=lambda path: (len(path.parent.name), path.parent.name)):
        result = load_result(path, "resume")
        results.setdefault(result.tags.get("config_hash", ""), []).append((path.parent, result))
    return results


def continue_job(state: JobState, now: Result, settings: SweepSettings) -> str:
    """Continue from the job's earlier result, or start the job again.

    Returns a message if the job starts again, or keeps more trials than were asked for; otherwise
    an empty string. now: the job's result before any trial, with the present data, code and
    machine.
    """
    earlier, most = state.result, state.entry.job.most_trials
    # Trials with other data, code or another machine have another key, and can't be continued.
    if earlier.key and earlier.key != now.key:
        copy = _copy_result(state.entry.folder, earlier.key)
        state.continue_from(replace(now, run_id=earlier.run_id))
        changed = ", ".join(changes(earlier, now)) or "an option's code"
        return f"{now.name} is measured again, {changed} changed; the earlier result is in {copy}"
    if _is_finished(state, settings):
        state.keep()
        num_trials = len(earlier.trials)
        more = f"{now.name} keeps its {num_trials} trials, more than trials={most} asks for"
        return more if num_trials > most else ""
    if _stays_failed(earlier, now, settings):
        state.keep()
        return ""
    # The job continues from its trials. If other work may have disturbed these trials, the job
    # keeps its tag `concurrent`, even if later trials run alone.
    kept_tags = {"concurrent": "true"} if "concurrent" in earlier.tags else {}
    kept = {name: getattr(earlier, name) for name in KEPT_FIELDS}
    state.continue_from(replace(now, tags=now.tags | kept_tags, **kept))
    return ""


def _is_finished(state: JobState, settings: SweepSettings) -> bool:
    """True if nothing is left to do for the job's earlier result."""
    has_all_trials = len(state.trial_numbers) >= state.entry.job.most_trials
    lacks_more = settings.explain and lacks_explanation(state.result)
    return state.result.status == "FINISHED" and has_all_trials and not lacks_more


def _stays_failed(earlier: Result, now: Result, settings: SweepSettings) -> bool:
    """True if the job has failed, would fail again, and retry_failed=false."""
    if earlier.status != "FAILED" or settings.retry_failed:
        return False
    # A job that failed before its data was known has no key. Such a job runs again if anything but
    # the data has changed: for example, a missing library may have been installed.
    return bool(earlier.key) or not changes(replace(earlier, fingerprint=now.fingerprint), now)


def fail_or_keep(state: JobState, now: Result, failure: Failure) -> str:
    """Fail a job that can't be measured now, or keep its earlier finished result.

    Returns a message if that result is kept, else an empty string. now: the job's result before any
    trial, with the present code and machine.
    """
    if state.owns_result:
        state.fail(failure)
        return ""
    if state.result.status == "FINISHED":
        state.keep()
        name = state.result.name
        return f"{name} keeps its finished result; it could not be run now: {failure.reason}"
    # Trials keep the environment in which they ran. Without trials, the failure belongs to the
    # present environment.
    earlier = state.result
    environment = earlier.environment if earlier.trials else now.environment
    state.continue_from(replace(earlier, environment=environment))
    state.fail(failure)
    return ""


def changes(earlier: Result, now: Result) -> list[str]:
    """Descriptions of the differences in data, code, libraries, Python and machine; empty if there
    are none."""
    before, after = earlier.environment, now.environment
    differences = ["the data"] if earlier.fingerprint != now.fingerprint else []
    differences += ["fastloop's code"] if before.get("code") != after.get("code") else []
    old, new = before.get("versions", {}), after.get("versions", {})
    differences += [
        f"{name} {old.get(name)} to {new[name]}" for name in new if old.get(name) != new[name]
    ]
    differences += ["Python"] if before.get("python") != after.get("python") else []
    is_other_machine = any(before.get(name) != after.get(name) for name in MACHINE_FACTS)
    return [*differences, "the machine"] if is_other_machine else differences


def _copy_result(folder: Path, key: str) -> Path:
    """Copy result.json to a new name in its folder, and return the copy's path."""
    stem = f"result-{key[:8]}"
    names = chain([stem], (f"{stem}-{number}" for number in count(1)))
    copy = next(path for name in names if not (path := folder / f"{name}.json").exists())
    shutil.copy2(folder / RESULT_FILE, copy)
    return copy


def describe_kept_trials(entries: Sequence[SweepJob], folder: Path | None = None) -> str:
    """The end of the message about an interruption, on the trials and on the way to continue.

    entries: the jobs of the interrupted sweep. folder: its folder; None: the sweep can't be
    resumed.
    """
    folders = (entry.folder for entry in entries if (entry.folder / RESULT_FILE).exists())
    if not any(load(each).trials for each in folders):
        return ": no trial has finished"
    if folder is None:
        return ": finished trials are kept"
    near = folder.relative_to(Path.cwd()) if Path.cwd() in folder.parents else folder
    argument = f"resume={near}" if PLAIN_PATH.fullmatch(str(near)) else "resume=last"
    return f": finished trials are kept in {near}; the same command with {argument} continues"
