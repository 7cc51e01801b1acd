"""Run `hydra.main`, to print Hydra's information or to measure a sweep by a Hydra launcher.

A Hydra launcher, such as joblib, ray or submitit, runs each job in a process that it starts itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from fastloop.config.build_jobs import build_request
from fastloop.config.catalogue import resource_folder
from fastloop.config.command_line import CommandLine, prepare_completion, quote
from fastloop.config.composed_defaults import copy_removals
from fastloop.config.composed_job import Combination, combination_of
from fastloop.config.hydra_api import (
    CONFIG_NAME,
    VERSION_BASE,
    set_up_hydra,
)
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import pass_to_own_code
from fastloop.core.outputs_folder import remove_unused
from fastloop.processes.signals import handle_signals
from fastloop.sweep.job_names import job_names
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.sweep.settings import SweepSettings

FULL_ERROR = "HYDRA_FULL_ERROR"
"""Variable of the environment; with 1, Hydra raises errors with their traceback."""
MeasureHere = Callable[[list[JobRequest]], int]
"""Measures requests in this process, and returns the exit status."""


def run_hydra(line: CommandLine, task: Callable[[DictConfig], None]) -> None:
    """Run hydra.main: to print information, or to start the processes of its launcher.

    task: called with each job's configuration, in the job's process.
    """
    set_up_hydra()
    prepare_completion()
    # Flags come first: Hydra 1.3 rejects `loader=x -m trials=20`, because argparse takes all
    # positional arguments at once; Hydra 1.4 accepts it (facebookresearch/hydra#3133).
    sys.argv[1:] = [*line.flags, *pass_to_own_code(line.overrides)]
    full_error = os.environ.get(FULL_ERROR)
    # With this variable, hydra.main raises errors, instead of printing them and exiting.
    os.environ[FULL_ERROR] = "1"
    try:
        conf = str(resource_folder("conf"))
        hydra.main(version_base=VERSION_BASE, config_path=conf, config_name=CONFIG_NAME)(task)()
    finally:
        os.environ.pop(FULL_ERROR)
        if full_error is not None:
            os.environ[FULL_ERROR] = full_error


def measure_by_launcher(
    line: CommandLine,
    combinations: list[Combination],
    requests: list[JobRequest],
    measure_here: MeasureHere,
) -> list[JobRequest]:
    """Measure the requests in the processes of a Hydra launcher and return them.

    Raises ConfigError before the first process starts if the launcher can't be used, and later if
    the launcher or a job fails.
    """
    first = combinations[0]
    name = f"hydra/launcher={first.launcher}"
    if len(requests) == 1 and not line.is_sweep:
        raise ConfigError(f"{name}: it runs sweeps only; add -m")
    for combination, request in zip(combinations, requests, strict=True):
        _check_hydra_launcher(name, combination, request)
    names = job_names(requests)
    colours = [request.colour for request in requests]
    print(
        f"{name}: jobs: {len(requests)}; results go to {first.sweep_folder}",
        file=sys.stderr,
    )

    def measure(cfg: DictConfig) -> None:
        hydra_conf = HydraConfig.get()
        combination = combination_of(cfg, hydra_conf)
        folder = Path(hydra_conf.runtime.output_dir)
        number = int(folder.name)
        # Hydra has composed `cfg` by itself, without the changes that `compose_combinations` makes
        # to defaults.
        composed = combinations[number]
        values = copy_removals(combination.values, composed.values)
        combination = replace(combination, values=values, choices=composed.choices)
        request = replace(build_request(combination), folder=folder, sweep_folder=folder.parent)
        if measure_here([replace(request, name=names[number], colour=colours[number])]):
            raise ConfigError(f"{' '.join(request.overrides)}: this job failed, see above")

    # On a signal, the launcher's processes must be ended.
    handle_signals()
    # The name of the default folder contains the time. Without this override, Hydra would name
    # another folder than when the jobs were composed.
    same_folder = f"hydra.sweep.dir={quote(str(first.sweep_folder))}"
    try:
        run_hydra(replace(line, overrides=(*line.overrides, same_folder)), measure)
    # A launcher may raise anything, for example if there is no cluster, or if a job is lost.
    except Exception as error:
        remove_unused(first.sweep_folder)
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split("\n")[:2]).strip() or type(error).__name__
        raise ConfigError(f"{name}: {reason}") from error
    return [
        replace(request, name=name, is_done=True)
        for request, name in zip(requests, names, strict=True)
    ]


def refuse_launcher(command: str) -> MeasureHere:
    """Make the `measure_here` of `compose_all` for a command that no Hydra launcher can run.

    The function prints that the command measures only in its own process, and returns status 1.
    """

    def refuse(_: list[JobRequest]) -> int:
        problem = f"{command} measures on this machine, in its own process"
        print(f"hydra/launcher: {problem}; allowed: hydra/launcher=basic", file=sys.stderr)
        return 1

    return refuse


def _check_hydra_launcher(name: str, combination: Combination, request: JobRequest) -> None:
    """Raise ConfigError for settings that a Hydra launcher other than basic can't honour."""
    _check_concurrent(name, request.sweep)
    if request.launcher.world_size > 1 and _is_under_torchrun():
        reason = "the processes of torchrun run one job at a time, together; allowed: basic"
        raise ConfigError(f"{name}: {reason}")
    # These are settings of submitit.
    for setting in ("nodes", "tasks_per_node"):
        value: Any = combination.launcher_settings.get(setting) or 1
        if value > 1:
            reason = "each would measure the same job; launcher=torchrun starts several processes"
            raise ConfigError(f"hydra.launcher.{setting}={value}: allowed: 1; {reason}")


def _check_concurrent(name: str, sweep: SweepSettings) -> None:
    """Raise ConfigError if the sweep's settings exclude concurrent jobs, or resume a sweep."""
    if not sweep.allow_concurrent:
        reason = "it runs jobs concurrently or on different machines, and not in rounds"
        allowed = "allowed: basic, or any launcher with allow_concurrent=true, which is not ranked"
        raise ConfigError(f"{name}: {reason}; {allowed}")
    if sweep.resume:
        raise ConfigError(
            f"resume={sweep.resume}: {name}: only hydra/launcher=basic can resume a sweep"
        )


def _is_under_torchrun() -> bool:
    from fastloop.processes.torchrun_env import torchrun_process

    return torchrun_process() is not None
