"""Compose and build the jobs of a command line, each as a JobRequest.

To compose is to merge conf/, other yaml files and overrides into a configuration, by Hydra. To
build is to make the objects that the configuration describes. `fastloop run` and most commands that
take a job call `compose_all`.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fastloop.config.build_jobs import (
    build_job,
    build_request,
    check_settings,
    requirements_of,
)
from fastloop.config.catalogue import find_option, option_values, overridable_names
from fastloop.config.combinations import BASIC, Combinations, compose_combinations
from fastloop.config.command_line import CommandLine, read_command_line
from fastloop.config.compose_listed_jobs import compose_listed_jobs
from fastloop.config.composed_job import Combination
from fastloop.config.composed_values import compose_values
from fastloop.config.hydra_launcher import FULL_ERROR, MeasureHere, measure_by_launcher, run_hydra
from fastloop.config.messages import ConfigError, usage_message
from fastloop.config.show_config import compose_help, config_text, print_config_info
from fastloop.config.store_choice import describe_missing_store
from fastloop.config.unknown_settings import refuse_unknown_settings
from fastloop.config.user_options import check_own_code
from fastloop.core.types import BadData, Unsupported, UsageError
from fastloop.data.dataset_files import own_path
from fastloop.sweep.colours import colour_jobs
from fastloop.sweep.forecast import print_once
from fastloop.sweep.job_config import SWEEP_GROUPS
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.trial.job import Job

OUTPUTS = "FASTLOOP_OUTPUTS"
"""Name of the environment variable with the path of the outputs folder."""
TRIAL_MODULES = ("fastloop.trial.tasks",)
"""Modules with the functions that the processes of a sweep call."""


def compose_all(
    measure_here: MeasureHere,
    describe: Callable[[Sequence[Mapping[str, Any]]], str] | None = None,
    modules: Sequence[str] = TRIAL_MODULES,
) -> list[JobRequest]:
    """Compose and build all jobs of sys.argv; returns an empty list after --help, --cfg and so on.

    measure_here: measures one request. With a launcher of Hydra (joblib, ray, submitit), the
    launcher's processes call `measure_here`, and `is_done` is True in the returned requests.
    describe: returns a line about the work from the configurations; None: no line. The line is
    printed only if torch is not imported yet.
    modules: modules that the processes of the command need; the forkserver imports them early.
    For an invalid name or value, prints one line and exits with status 1, before anything is
    written.
    """
    requests: list[JobRequest] = []
    # If FASTLOOP_OUTPUTS were empty, Hydra would write to the root of the file system.
    if not os.environ.get(OUTPUTS, "outputs"):
        del os.environ[OUTPUTS]
    try:
        line = read_command_line(sys.argv[1:])
        if _print_information(line):
            return []
        composed = compose_combinations(line)
        combinations = composed.each
        jobs = [combination.values for combination in combinations]
        _check_and_tell(combinations, describe)
        _start_server(jobs, modules)
        had_store = [bool(job["loader"].get("store")) for job in jobs]
        requests = _build_requests(line, combinations)
        _tell_partial_settings(composed)
        _tell_missing_stores(requests, had_store)
        if combinations[0].launcher == BASIC:
            return requests
        return measure_by_launcher(line, combinations, requests, measure_here)
    # A closed pipe, as in `... --cfg job | head`, is not an error of the configuration.
    except BrokenPipeError:
        raise
    except Exception as error:
        is_full = os.environ.get(FULL_ERROR) == "1"
        text = None if is_full else usage_message(error, overridable_names())
        if text is None:
            raise
        print(text, file=sys.stderr)
        # If a Hydra launcher has measured some jobs before the error, their results are printed.
        if any(request.folder.is_dir() for request in requests):
            return [replace(request, is_done=True) for request in requests]
        sys.exit(1)


def _print_information(line: CommandLine) -> bool:
    """Print the answer to --version, --help, --cfg and similar flags.

    Returns False if the command line has none of these flags.
    """
    if "--version" in line.flags:
        print(f"fastloop {version('fastloop')}")
        return True
    if "--help" in line.flags and (text := compose_help(line)) is not None:
        print(text)
        return True
    if (text := config_text(line)) is not None:
        print(text, end="")
        return True
    if print_config_info(line):
        return True
    if line.prints_info:
        run_hydra(line, lambda _: None)
    return line.prints_info


def _check_and_tell(
    combinations: Sequence[Combination],
    describe: Callable[[Sequence[Mapping[str, Any]]], str] | None,
) -> None:
    """Check the jobs, then print the line about the work, unless torch is imported already.

    describe: as in `compose_all`. Raises ConfigError for a wrong setting, and if no job finds the
    files of its dataset.
    """
    jobs = [combination.values for combination in combinations]
    refuse_unknown_settings(combinations)
    for job in jobs:
        check_settings({**job})
    check_own_code(jobs)
    # Another launcher of Hydra may run the jobs on other machines, which may have other files.
    if combinations[0].launcher == BASIC:
        _refuse_missing_files(combinations)
    # The user reads the line while torch is imported, which takes seconds.
    if describe and "torch" not in sys.modules:
        print_once(describe(jobs))


def _refuse_missing_files(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError if none of these jobs finds the files of its dataset.

    If only some jobs lack files, the others are measured, and the table shows the reasons.
    """
    reasons = [_missing_files(each) for each in combinations]
    if reasons and all(reasons):
        raise ConfigError("; ".join(dict.fromkeys(reasons)))


def _missing_files(combination: Combination) -> str:
    """The reason why the job's dataset can't find the user's files.

    Empty if the files are found, and if the dataset is code of the user's own.
    """
    values = combination.values["dataset"]
    name = combination.choices.get("dataset", "")
    option = find_option("dataset", name)
    if option is None or values.get("_target_") != option_values("dataset", name)["_target_"]:
        return ""
    for setting in option.settings:
        path = values.get(setting.name)
        # Some of these paths may be null; the setting's meaning then says which data is read.
        if not setting.is_own_path or (path is None and setting.explains_null):
            continue
        # A value of another type is refused when the dataset is built.
        if path is not None and not isinstance(path, str):
            continue
        try:
            own_path(path, f"dataset={name}", setting.meaning, f"dataset.{setting.name}")
        except (Unsupported, BadData) as error:
            return str(error)
    return ""


def _tell_partial_settings(composed: Combinations) -> None:
    """Print a line for each setting that only some jobs have, with the number of these jobs.

    Raises ConfigError instead if a launcher of Hydra runs the jobs, because such a launcher
    composes each job itself, with all settings.
    """
    for line in composed.partial_settings:
        if (launcher := composed.each[0].launcher) != BASIC:
            raise ConfigError(f"hydra/launcher={launcher}: {line}; allowed: settings of all jobs")
        print(line, file=sys.stderr)


def _tell_missing_stores(requests: Sequence[JobRequest], had_store: Sequence[bool]) -> None:
    """Print a line for each loader that reads the samples because its store was left out.

    had_store: for each request, True if its configuration has a store.
    """
    lines = [
        describe_missing_store(request.job, request.choices)
        for request, had_one in zip(requests, had_store, strict=True)
        if had_one and request.job.loader.store is None
    ]
    for line in dict.fromkeys(lines):
        print(line, file=sys.stderr)


def _start_server(jobs: Sequence[Mapping[str, Any]], modules: Sequence[str]) -> None:
    """Start the forkserver of the trials, which imports the modules that these jobs need.

    modules: further modules to import. Does nothing unless all jobs have isolation=forkserver.
    """
    from fastloop.processes.start_method import start_server_early

    if all(job["isolation"] == "forkserver" for job in jobs):
        targets = [target for job in jobs for target in _targets(job)]
        own = [each.rpartition(".")[0] for each in targets if each.startswith("fastloop.options.")]
        start_server_early([*dict.fromkeys([*own, *modules])])


def _targets(node: Any) -> list[str]:
    """Every `_target_` (path of a class or function) of a configuration or a part of one.

    The groups of a sweep, SWEEP_GROUPS, are left out.
    """
    if not isinstance(node, dict):
        return []
    own = [str(node["_target_"])] if "_target_" in node else []
    names = [name for name in node if name not in SWEEP_GROUPS]
    return own + [target for name in names for target in _targets(node[name])]


def compose_silently() -> tuple[list[JobRequest], str]:
    """Compose the requests as `compose_all` does, and print nothing.

    Returns (the requests, the message of an error); the message is empty if there is no error.
    """
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            return compose_all(lambda _: 1), ""
        except SystemExit as end:
            return [], output.getvalue().strip() if end.code else ""


def compose_requirements(arguments: Sequence[str]) -> tuple[str, ...]:
    """Find the pip requirements of all jobs of a command line, each once; no job is built.

    arguments: the command line. Raises UsageError for an invalid name or value.
    """
    with usage_errors():
        line = read_command_line(arguments)
        combinations = [] if line.prints_info else compose_combinations(line).each
        found = [requirements_of(combination.values) for combination in combinations]
    return (*dict.fromkeys(each for texts in found for each in texts),)


def compose_job(*overrides: str) -> Job:
    """Compose the job of `python -m fastloop.run <overrides>`, as in compose_job("loader=raw").

    Raises ConfigError or one of Hydra's exceptions for an invalid name or value.
    """
    return build_job(compose_values(*overrides), overrides)


def compose_changed(overrides: Sequence[str]) -> Job:
    """Compose the job of these overrides with the flags of this command line, such as --config-dir.

    Raises ConfigError or one of Hydra's exceptions for an invalid name or value.
    """
    flags = [each for each in read_command_line(sys.argv[1:]).flags if each != "--multirun"]
    return compose_job(*flags, *overrides)


def compose_requests(jobs: Sequence[Sequence[str]], folder: Path) -> list[JobRequest]:
    """Compose the requests of the jobs of one sweep in that folder.

    jobs: the overrides of each job. The flags are those of this process's command line. Raises
    ConfigError or one of Hydra's exceptions for an invalid name or value.
    """
    line = read_command_line(sys.argv[1:])
    return _build_requests(line, compose_listed_jobs(line, jobs, folder))


def _build_requests(line: CommandLine, combinations: Sequence[Combination]) -> list[JobRequest]:
    """Build the request of each combination, with its colour and the flags of the command line."""
    built = [build_request(combination) for combination in combinations]
    return colour_jobs([replace(request, flags=line.config_flags) for request in built])


def refuse_several(arguments: Sequence[str], refusal: str) -> None:
    """Raise UsageError for a command line that makes several jobs, before a job is composed.

    arguments: the command line. refusal: the message, with {} in place of the overrides.
    """
    line = read_command_line(arguments)
    if line.prints_info:
        return
    is_sweep = line.is_sweep
    # If the line can't be parsed, composing it later reports the error.
    with contextlib.suppress(HydraException):
        parsed = OverridesParser.create().parse_overrides([*line.overrides])
        is_sweep = is_sweep or any(each.is_sweep_override() for each in parsed)
    if is_sweep:
        raise UsageError(refusal.format(shlex.join(line.overrides)))


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Raise Hydra's errors of invalid names and values as UsageError inside the context.

    The message is the line that `fastloop run` prints. Any other error is raised unchanged.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        text = usage_message(error, overridable_names())
        if text is None:
            raise
        raise UsageError(text) from error
