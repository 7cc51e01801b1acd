"""Write and read the plan of a race in a script's process, and its outcome, as files of a folder.

`fastloop tune --script` writes the plan and reads the outcome. The script's process, in which the
race runs, reads the plan and writes the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PLAN_FILE, OUTCOME_FILE, STEP_FILE = "plan.json", "outcome.json", "step.txt"
"""Names of the files in the folder; STEP_FILE says which configuration is being measured."""


@dataclass(frozen=True, kw_only=True)
class ScriptPlan:
    """The loop that is tuned, and the settings that are tried."""

    place: str
    """File and line of the loop."""
    made_at: str
    """Path and line of the call that makes the DataLoader."""
    settings: Mapping[str, Mapping[str, Any]]
    """DataLoader's settings of each configuration by its name, the present one first; `fastloader`
    is True if FastLoader takes its place."""
    step_s: float
    """Seconds of a step of the loop. Each step of a trial takes this long, too."""
    samples_wait: bool
    """True if samples wait rather than compute, so that many of them can be read at once."""
    pass_s: float
    """Mean seconds of a pass of the loop in the observed run, with the script's own workers."""
    num_samples: int | None = None
    """Length of the DataLoader's dataset; None if it has none."""
    end_ns: int
    """Time at which the race ends, by the clock of `now_ns`."""


@dataclass(frozen=True, kw_only=True)
class ScriptOutcome:
    """The outcome of the race in the script's process."""

    text: str = ""
    """The sentences and the table that the command prints."""
    best: str = ""
    """Name of the configuration to use; empty if there was no race."""
    is_faster: bool = False
    """True if `best` was confirmed to be faster than the present configuration."""
    needed_s: float | None = None
    """Seconds that a race needs if there was too little time for one; else None."""


def write_plan(folder: Path, plan: ScriptPlan) -> None:
    """Write the plan to the folder, for the script's process."""
    (folder / PLAN_FILE).write_text(json.dumps(asdict(plan)))


def read_plan(folder: Path) -> ScriptPlan:
    """Read the plan from the folder."""
    return ScriptPlan(**json.loads((folder / PLAN_FILE).read_text()))


def write_outcome(folder: Path, outcome: ScriptOutcome) -> None:
    """Write the outcome to the folder, for the command."""
    (folder / OUTCOME_FILE).write_text(json.dumps(asdict(outcome)))


def read_outcome(folder: Path) -> ScriptOutcome | None:
    """Read the outcome; None if the script ended before its loop asked for a batch."""
    try:
        return ScriptOutcome(**json.loads((folder / OUTCOME_FILE).read_text()))
    except FileNotFoundError:
        return None
