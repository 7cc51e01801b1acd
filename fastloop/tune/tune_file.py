"""Write, find and load tune.json: the plan of a race, the time spent, and the costs of passes.

A race runs trials of many configurations to find the fastest one. A pass is an instrumented epoch,
in which some costs are measured instead of in a trial. The file is in the folder of the tuning's
sweep, and `resume=` continues an interrupted race from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from fastloop.core.atomic_files import write_text
from fastloop.core.fingerprints import fingerprint
from fastloop.core.outputs_folder import outputs_folder, sweep_folders
from fastloop.core.types import UsageError

TUNE_FILE = "tune.json"
"""Name of the file in the folder of a sweep."""
LAST = "last"
"""The value of `resume=` that names the newest folder of the same command."""


@dataclass(kw_only=True)
class TuneFile:
    """The content of tune.json: the plan of a tuning command, and its progress."""

    command: str
    """The command's fingerprint, see `fingerprint_command`."""
    jobs: list[list[str]]
    """The overrides of each job of the sweep; the first job is the present configuration."""
    changes: list[list[str]]
    """The overrides by which each job differs from the present configuration."""
    left_out: dict[str, int]
    """The number of combinations that can't run here or were dropped, by the reason."""
    forecast_mib: list[float | None]
    """Forecast peak of memory of each job in MiB; None if memory could not be observed."""
    predicted: list[float]
    """Predicted cost of each job, in any unit; only ratios matter."""
    trial_s: float
    """Approximate seconds of a trial of the present configuration."""
    notes: list[str]
    """Settings that are not tried, and missing measurements, with the reasons."""
    combinations: int
    """The number of combinations that could be raced, besides the present configuration."""
    exhaustive: int
    """The number of trials with which all combinations and the present configuration could be
    measured."""
    raced_from_s: float | None = None
    """Seconds that were spent when the race began; None: it has not begun."""
    spent_s: dict[str, dict[int, float]] = field(default_factory=dict)
    """Name of a configuration -> number of a round -> seconds that were spent by the end of this
    trial."""
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    """Name of a configuration -> number of a round -> cost of the pass. Costs of trials are not
    here, but in the results of the jobs."""

    def note_spent(self, name: str, number: int, seconds: float) -> None:
        """Note the seconds that were spent at the end of a trial.

        name: name of the configuration. number: number of the round. If an earlier session has
        noted this trial, the notes of all later trials are shifted by the difference, so that the
        spent time does not decrease at the next trial of a repeated race.
        """
        spent_s = self.spent_s.setdefault(name, {})
        earlier_s = spent_s.get(number)
        if earlier_s is not None:
            for known in self.spent_s.values():
                for each in known:
                    if known[each] > earlier_s:
                        known[each] += seconds - earlier_s
        spent_s[number] = seconds

    def save(self, folder: Path) -> None:
        """Write <folder>/tune.json atomically."""
        write_text(folder / TUNE_FILE, json.dumps(asdict(self), indent=1) + "\n")


_adapter = pydantic.TypeAdapter(TuneFile)


def fingerprint_command(overrides: Sequence[str], settings: dict[str, Any]) -> str:
    """The fingerprint of a command: equal for two commands if one may resume the race of the other.

    overrides: those of the job. settings: the settings of tune, by name.
    """
    # The budget is left out, because it may be changed when a race is resumed.
    kept = sorted(each for each in overrides if not each.startswith("resume="))
    named = {name: value for name, value in settings.items() if name != "budget"}
    return fingerprint(kept, sorted(named.items(), key=str))


def find_tuning(name: str, command: str) -> tuple[Path, TuneFile] | None:
    """Find the tuning that `resume=` names; returns its folder and the content of its tune.json.

    name: a folder, or `last` for the newest folder of this command. command: the command's
    fingerprint. None for `last` if no folder has a tune.json. Raises UsageError if the named folder
    has no tune.json, or if the file is damaged or belongs to another command.
    """
    folders = reversed(sweep_folders()) if name == LAST else [Path(name).absolute()]
    tuned = [folder for folder in folders if (folder / TUNE_FILE).is_file()]
    for folder in tuned:
        file = _load(folder / TUNE_FILE, name)
        if file.command == command:
            return folder, file
    if name == LAST and not tuned:
        return None
    where = outputs_folder() if name == LAST else Path(name).absolute()
    reason = "it belongs to another command" if tuned else f"no {TUNE_FILE} in {where}"
    raise UsageError(f"resume={name}: {reason}; allowed: the folder of an earlier fastloop tune")


def _load(path: Path, name: str) -> TuneFile:
    """Load a tune.json. Raises UsageError if it can't be read, or if tune has not written it.

    name: the value of `resume=`, for the error.
    """
    remedy = f"allowed: the folder of another fastloop tune; without resume={name} it starts again"
    try:
        file = _adapter.validate_json(path.read_bytes())
    except (pydantic.ValidationError, OSError) as error:
        reason = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise UsageError(f"resume={name}: {path}: can't be read: {reason}; {remedy}") from error
    columns = file.jobs, file.changes, file.forecast_mib, file.predicted
    if len({len(column) for column in columns}) > 1:
        reason = "jobs, changes, forecast_mib and predicted differ in length"
        raise UsageError(f"resume={name}: {path}: can't be read: {reason}; {remedy}")
    return file
