"""A request to measure one combination of a sweep: its job, settings, name and colour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

# torch takes seconds to import: --cfg, --help and completion must not wait for it.
if TYPE_CHECKING:
    from fastloop.core.launcher import Launcher
    from fastloop.core.protocols import Tracker
    from fastloop.sweep.settings import SweepSettings
    from fastloop.trial.job import Job


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A combination of a sweep, composed and built, before it is measured."""

    job: Job
    sweep: SweepSettings
    launcher: Launcher
    tracker: Tracker
    choices: dict[str, str]
    """Group -> option."""
    overrides: tuple[str, ...]
    flags: tuple[str, ...] = ()
    """Flags of the command line that name the user's own yaml files, which another command line for
    this job needs as well."""
    config: dict[str, Any]
    """The resolved configuration."""
    config_yaml: str
    """The resolved configuration as YAML text."""
    colour: str
    """Colour of the job in charts, #rrggbb."""
    folder: Path
    """Folder of the job's files."""
    sweep_folder: Path
    name: str = ""
    """The job's name; empty until job_names has made the names of all jobs of the sweep."""
    is_done: bool = False
    """True if another process has measured the job already, as with Hydra's launchers."""
