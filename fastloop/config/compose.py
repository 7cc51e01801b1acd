"""Compose and build the jobs of a command line, each as a JobRequest.

To compose is to merge conf/, other yaml files and overrides into a configuration, by Hydra. To
build is to make the objects that the configuration describes. `fastloop run` and most commands that
take a job call `compose_all`, which shows the steps.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from fastloop.config.build_jobs import build_job, build_request
from fastloop.config.check_combinations import check_combinations
from fastloop.config.combinations import (
    BASIC,
    compose_combinations,
    compose_listed_jobs,
    describe_partial_settings,
)
from fastloop.config.command_line import CommandLine, read_command_line
from fastloop.config.composed_job import Combination
from fastloop.config.composed_values import compose_values
from fastloop.config.hydra_launcher import FULL_ERROR, MeasureHere, measure_by_launcher
from fastloop.config.messages import ConfigError, usage_message
from fastloop.config.print_information import print_information
from fastloop.config.requirements import requirements_of
from fastloop.config.store_choice import describe_missing_store
from fastloop.core.types import UsageError
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
    written. If a launcher of Hydra has measured some jobs before an error, prints the line and
    returns the requests.
    """
    requests: list[JobRequest] = []
    # If FASTLOOP_OUTPUTS were empty, Hydra would write to the root of the file system.
    if not os.environ.get(OUTPUTS, "outputs"):
        del os.environ[OUTPUTS]
    try:
        line = read_command_line(sys.argv[1:])
        if print_information(line):
            return []
        combinations = compose_combinations(line)
        check_combinations(combinations)
        jobs = [combination.values for combination in combinations]
        # The user reads the line while torch is imported, which takes seconds.
        if describe and "torch" not in sys.modules:
            print_once(describe(jobs))
        _start_server(jobs, modules)
        requests = _build_requests(line, combinations)
        _tell_partial_settings(combinations)
        _tell_missing_stores(combinations, requests)
        if combinations[0].launcher == BASIC:
            return requests
        return measure_by_launcher(line, combinations, requests, measure_here)
    # A closed pipe, as in `... --cfg job | head`, is not an error of the configuration.
    except BrokenPipeError:
        raise
    except Exception as error:
        is_full = os.environ.get(FULL_ERROR) == "1"
        text = None if is_full else usage_message(error)
        if text is None:
            raise
        print(text, file=sys.stderr)
        # If a Hydra launcher has measured some jobs before the error, their results are printed.
        if any(request.folder.is_dir() for request in requests):
            return [replace(request, is_done=True) for request in requests]
        sys.exit(1)


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
    """Every `_target_` (path of a class or function) of a configuration, or of a part of it.

    The groups of a sweep, SWEEP_GROUPS, are left out.
    """
    if not isinstance(node, dict):
        return []
    own = [str(node["_target_"])] if "_target_" in node else []
    names = [name for name in node if name not in SWEEP_GROUPS]
    return own + [target for name in names for target in _targets(node[name])]


def _build_requests(line: CommandLine, combinations: Sequence[Combination]) -> list[JobRequest]:
    """Build the request of each combination, with its colour and the flags of the command line."""
    built = [build_request(combination) for combination in combinations]
    return colour_jobs([replace(request, flags=line.config_flags) for request in built])


def _tell_partial_settings(combinations: Sequence[Combination]) -> None:
    """Print a line for each setting that only some jobs have, with the number of these jobs.

    Raises ConfigError instead if a launcher of Hydra runs the jobs, because such a launcher
    composes each job itself, with all settings.
    """
    for line in describe_partial_settings(combinations):
        if (launcher := combinations[0].launcher) != BASIC:
            raise ConfigError(f"hydra/launcher={launcher}: {line}; allowed: settings of all jobs")
        print(line, file=sys.stderr)


def _tell_missing_stores(
    combinations: Sequence[Combination], requests: Sequence[JobRequest]
) -> None:
    """Print a line for each loader that reads the samples because its store was left out.

    requests: the requests that were built from the combinations.
    """
    lines = [
        describe_missing_store(request.job, request.choices)
        for combination, request in zip(combinations, requests, strict=True)
        if combination.values["loader"].get("store") and request.job.loader.store is None
    ]
    for line in dict.fromkeys(lines):
        print(line, file=sys.stderr)


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
        combinations = [] if line.prints_info else compose_combinations(line)
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


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Raise Hydra's errors of invalid names and values as UsageError inside the context.

    The message is the line that `fastloop run` prints. Any other error is raised unchanged.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        text = usage_message(error)
        if text is None:
            raise
        raise UsageError(text) from error
