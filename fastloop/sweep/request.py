"""The class `JobRequest`: a request to measure one job of a sweep, composed from a command line.

fastloop/config/ makes a request for each combination of settings; a sweep measures the requests.
"""

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
    """A job that is to be measured, with the settings of the command line that asks for it."""

    job: Job
    sweep: SweepSettings
    """Settings of the whole sweep, which are equal in all of its requests."""
    launcher: Launcher
    """Starts the processes of the job."""
    tracker: Tracker
    """Keeps the results; equal in all requests of a sweep."""
    choices: dict[str, str]
    """Group of options -> name of the chosen option."""
    overrides: tuple[str, ...]
    """The arguments of the command line for this job, such as `num_workers=2`."""
    flags: tuple[str, ...] = ()
    """Flags of the command line that name the user's own yaml files. Any other command line for
    this job needs these flags, too."""
    config: dict[str, Any]
    """The resolved configuration."""
    config_yaml: str
    """The resolved configuration as YAML text."""
    colour: str
    """Colour of the job in charts, #rrggbb."""
    folder: Path
    """Folder of the job's files."""
    sweep_folder: Path
    """Folder of the files of the whole sweep."""
    name: str = ""
    """The job's name if one of Hydra's launchers distributes the jobs; else empty, and `job_names`
    makes the name."""
    is_done: bool = False
    """True if one of Hydra's launchers has run the jobs already, in other processes."""
