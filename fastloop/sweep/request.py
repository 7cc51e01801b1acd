"""A request to measure one combination of a sweep: its job, name, parameters, tags and hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.core.fingerprints import fingerprint
from fastloop.sweep.colours import DISTINCT, colour_distance, place_colour

# torch takes seconds to import: --cfg, --help and completion must not wait for it
if TYPE_CHECKING:
    from fastloop.core.protocols import Launcher, Tracker
    from fastloop.sweep.settings import SweepSettings
    from fastloop.trial.job import Job

SWEEP_GROUPS = ("launcher", "tracker")
"""Option groups that belong to the sweep and not to a job."""
NAME_PREFIXES = ("loader=", "dataset=", "loader._target_=", "dataset._target_=")
"""Overrides that a job's name does not repeat, as it begins with their values."""
LOADER_BATCH_SIZE = "its own"
"""Value of the parameter batch_size for a loader that does not honour the setting."""
NON_IDENTITY = ("trials", "trial_timeout_s", "build_environment")
"""Settings that do not distinguish trials: their number, their time limit, and who builds their
environment."""
ROOT = ".root"
"""End of the names of settings of folders. A default one follows the outputs folder, and does not
distinguish trials; one that the command names does: it may be on another disk."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A combination of a sweep, composed and built, before it is measured."""

    job: Job
    sweep: SweepSettings
    launcher: Launcher
    tracker: Tracker
    choices: dict[str, str]
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
    sweep_folder: Path
    name: str = ""
    """Empty until it is known; job_names makes the names of all jobs of a sweep."""
    is_done: bool = False
    """True if another process has measured it already, as Hydra's launchers do."""


def job_names(requests: Sequence[JobRequest]) -> list[str]:
    """Names of the jobs: `<loader> <dataset>`, and the overrides that vary in the sweep.

    The charts of MLflow show only the beginning of a name. So the overrides that tell a job from
    others of its loader and dataset come first, and a setting is named by its last part, such as
    `num_threads=2` for `loader.num_threads=2`, if no other one that varies has that part.
    """
    common = set.intersection(*(set(request.overrides) for request in requests))
    beginnings = [f"{each.choices['loader']} {each.choices['dataset']}" for each in requests]
    varying = [
        {
            override.lstrip("+").partition("=")[0]: override
            for override in request.overrides
            if override not in common and not override.lstrip("+").startswith(NAME_PREFIXES)
        }
        for request in requests
    ]
    settings = [*dict.fromkeys(setting for values in varying for setting in values)]
    last_parts = [setting.rpartition(".")[2] for setting in settings]
    names = []
    # `alike` are the overrides of jobs with the same loader and dataset; `telling` are the settings
    # that differ among these jobs.
    for beginning, overrides in zip(beginnings, varying, strict=True):
        alike = [
            each for each, other in zip(varying, beginnings, strict=True) if other == beginning
        ]
        telling = {
            setting for setting in overrides if len({each.get(setting) for each in alike}) > 1
        }
        words = []
        for setting in sorted(overrides, key=lambda setting: setting not in telling):
            parents, dot, last = setting.rpartition(".")
            is_clear = last_parts.count(last) == 1
            word = overrides[setting].lstrip("+")
            # `~loader.num_threads=2` leaves the setting out, whatever its value
            if setting.startswith("~"):
                word = f"~{last.lstrip('~')}" if is_clear else setting
            words.append(word.removeprefix(f"{parents}{dot}") if is_clear else word)
        names.append(" ".join([beginning, *words]))
    return names


def colour_jobs(requests: Sequence[JobRequest]) -> list[JobRequest]:
    """The requests with a colour for each job: its loader's colour or, if two jobs would have
    nearly the same colour, one of its own."""
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

    # conf/launcher passes `isolation` on to the launcher
    others = (*SWEEP_GROUPS, *SWEEP_SETTINGS, "isolation")
    return {name: node for name, node in values.items() if name not in others}


def run_params(request: JobRequest) -> dict[str, Any]:
    """Parameters of a job's run: dotted names and values of all settings, and the chosen
    options."""
    from fastloop.core.traits import LoaderTraits, traits_of

    choices = {group.rpartition("/")[2]: choice for group, choice in request.choices.items()}
    is_honoured = traits_of(LoaderTraits, request.job.loader).honours_batch_size
    batch_size = {} if is_honoured else {"batch_size": LOADER_BATCH_SIZE}
    world_size = {"world_size": request.launcher.world_size}
    return flatten(request.config) | choices | batch_size | world_size


def run_tags(request: JobRequest) -> dict[str, str]:
    """The tags of a job's run: sweep, identity, commit, machine, device, colour."""
    from fastloop.core.machine import describe_machine
    from fastloop.core.types import Unsupported
    from fastloop.processes.rank_group import resolve_device

    # A device that this machine lacks makes the job fail later, with a reason; it has tags anyway.
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


def config_hash(request: JobRequest) -> str:
    """A hash that is equal for jobs with interchangeable trials, by their configurations."""
    return fingerprint(sorted(_identity(request).items()))


def _identity(request: JobRequest) -> dict[str, str]:
    """The settings that distinguish a trial from others, by dotted name."""
    values = flatten(job_config(request.config))
    # The launcher is the sweep's, but the number of its processes changes a trial.
    if (size := request.launcher.world_size) > 1:
        values |= {"world_size": size, "backend": request.config["launcher"]["backend"]}
    named = {override.lstrip("+").partition("=")[0] for override in request.overrides}
    return {
        name: repr(value)
        for name, value in values.items()
        if name not in NON_IDENTITY and (name in named or not name.endswith(ROOT))
    }
