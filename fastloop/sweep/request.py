"""A request to measure one combination of a sweep: its job, settings, name and colour."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.sweep.colours import DISTINCT, colour_distance, place_colour

# torch takes seconds to import: --cfg, --help and completion must not wait for it.
if TYPE_CHECKING:
    from fastloop.core.launcher import Launcher
    from fastloop.core.protocols import Tracker
    from fastloop.sweep.settings import SweepSettings
    from fastloop.trial.job import Job

SWEEP_GROUPS = ("launcher", "tracker")
"""Option groups that belong to the sweep and not to a job."""
NAME_PREFIXES = ("loader=", "dataset=", "loader._target_=", "dataset._target_=")
"""Overrides that a job's name does not repeat, as it begins with their values."""
LOADER_BATCH_SIZE = "its own"
"""Value of the parameter batch_size for a loader that does not honour the setting."""


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
    """The job's name. Empty until it is known, because job_names makes the names of all jobs of a
    sweep at once."""
    is_done: bool = False
    """True if another process has measured it already, as Hydra's launchers do."""


def job_names(requests: Sequence[JobRequest]) -> list[str]:
    """Names of the jobs: `<loader> <dataset>`, and the overrides that vary in the sweep.

    The charts of MLflow show only the beginning of a name. So the overrides that tell a job from
    others of its loader and dataset come first, and a setting is named by its last part, such as
    `num_threads=2` for `loader.num_threads=2`, if no other one that varies has that part.
    """
    beginnings = [f"{each.choices['loader']} {each.choices['dataset']}" for each in requests]
    varying = _varying_overrides(requests)
    settings = {setting for overrides in varying for setting in overrides}
    count_last = Counter(_last_part(setting) for setting in settings)
    alike: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for beginning, overrides in zip(beginnings, varying, strict=True):
        alike[beginning].append(overrides)
    names = []
    for beginning, overrides in zip(beginnings, varying, strict=True):
        # Settings that all jobs of the same loader and dataset share come last.
        shared = {
            setting
            for setting in overrides
            if len({each.get(setting) for each in alike[beginning]}) == 1
        }
        words = [
            _name_word(setting, overrides[setting], is_clear=count_last[_last_part(setting)] == 1)
            for setting in sorted(overrides, key=lambda setting: setting in shared)
        ]
        names.append(" ".join([beginning, *words]))
    return names


def _varying_overrides(requests: Sequence[JobRequest]) -> list[dict[str, str]]:
    """For each request, setting -> override, without the overrides that all requests share."""
    common = set.intersection(*(set(request.overrides) for request in requests))
    return [
        {
            override.lstrip("+").partition("=")[0]: override
            for override in request.overrides
            if override not in common and not override.lstrip("+").startswith(NAME_PREFIXES)
        }
        for request in requests
    ]


def _last_part(setting: str) -> str:
    return setting.rpartition(".")[2]


def _name_word(setting: str, override: str, *, is_clear: bool) -> str:
    """The word of a job's name for an override; is_clear: the last part of the setting is
    enough."""
    # `~loader.num_threads=2` leaves the setting out, whatever its value.
    if setting.startswith("~"):
        return f"~{_last_part(setting).lstrip('~')}" if is_clear else setting
    word = override.lstrip("+")
    return word.removeprefix(setting.removesuffix(_last_part(setting))) if is_clear else word


def colour_jobs(requests: Sequence[JobRequest]) -> list[JobRequest]:
    """Return the requests with a colour for each job: its loader's colour or, if two jobs would
    have nearly the same colour, one of its own."""
    colours = [request.colour for request in requests]
    pairs = combinations(colours, 2)
    if all(colour_distance(one, other) >= DISTINCT for one, other in pairs):
        return [*requests]
    return [replace(each, colour=place_colour(place)) for place, each in enumerate(requests)]


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> leaf, for all leaves of nested dicts.

    >>> flatten({"loader": {"num_threads": 2}, "epochs": 5})
    {'loader.num_threads': 2, 'epochs': 5}
    """
    if not isinstance(values, dict):
        return {prefix: values}
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves |= flatten(value, f"{prefix}.{name}" if prefix else str(name))
    return leaves


def job_config(values: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that belongs to the job, without the sweep's settings."""
    from fastloop.sweep.settings import SWEEP_SETTINGS

    # conf/launcher passes `isolation` on to the launcher.
    others = (*SWEEP_GROUPS, *SWEEP_SETTINGS, "isolation")
    return {name: node for name, node in values.items() if name not in others}
