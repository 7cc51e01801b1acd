"""Compose all combinations of a command line with Hydra's Compose API, before any job runs.

A combination is the composed configuration of one job. A sweep has one for each combination of the
values of its overrides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fastloop.config.catalogue import settings
from fastloop.config.command_line import CommandLine, expand_homes, parse_overrides
from fastloop.config.expand_sweep import expand_jobs, override_values
from fastloop.config.foreign_settings import (
    Concerns,
    ForeignSetting,
    explain_setting,
    find_foreign_setting,
    leave_out,
    leave_out_of_experiment,
    name_in,
    override_text,
    without_force,
)
from fastloop.config.hydra_api import (
    CONFIG_NAME,
    VALUE_IN_OPTION,
    change_values,
    compose_api,
    hydra_compose,
)
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import BUILTIN_OPTIONS

ALL_LOADERS = re.compile(r"loader=glob\(")
"""Start of an override that names loaders by a pattern."""
RAW = "raw"
"""The loader that reads the dataset itself."""
BASIC = "basic"
"""Name of Hydra's default launcher, and of its default sweeper."""


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Configuration of one job, with Hydra's settings for it."""

    values: dict[str, Any]
    """The configuration without Hydra's part, with interpolations resolved."""
    choices: dict[str, str]
    """Group -> option."""
    overrides: tuple[str, ...]
    launcher: str
    """Name of Hydra's launcher."""
    launcher_settings: dict[str, Any]
    folder: Path
    """Folder of the job's files."""
    sweep_folder: Path


@dataclass(frozen=True, kw_only=True)
class Combinations:
    """All combinations of a command line."""

    each: list[Combination]
    concerns: tuple[str, ...] = ()
    """Lines about settings that only some of the combinations have."""


def compose_combinations(line: CommandLine) -> Combinations:
    """Compose all combinations of a command line, in the order of Hydra's basic sweeper.

    If a combination's option lacks a setting, the setting is left out there. Combinations that are
    then equal, or were typed twice, become one. Raises ConfigError and Hydra's exceptions.
    """
    with compose_api(line):
        name = line.config_name or CONFIG_NAME
        first = _compose_first(name, line)
        if not line.is_sweep and first.hydra.mode != RunMode.MULTIRUN:
            alone = Concerns()
            combination = _add_job(alone, combination_of(first), {})
            return Combinations(each=[combination], concerns=alone.lines())
        _check_sweeper(first)
        swept = [f"{key}={value}" for key, value in (first.hydra.sweeper.params or {}).items()]
        jobs = expand_jobs(parse_overrides([*swept, *line.overrides]))
        # The sweep's folder is resolved only once. Its name contains the time, and would otherwise
        # differ between jobs.
        folder = str(first.hydra.sweep.dir)
        found = _compose_sweep(name, jobs, folder)
        if any(ALL_LOADERS.match(text) for text in (*swept, *line.overrides)):
            found = replace(found, each=_with_baseline(found.each))
        return found


def _with_baseline(combinations: Sequence[Combination]) -> list[Combination]:
    """Make raw the baseline of each combination that names none, if raw is one of the loaders."""
    # The default baseline is the job that was typed first. A pattern lists its loaders in
    # alphabetical order, so the first one has no special meaning.
    if not any(each.choices["loader"] == RAW for each in combinations):
        return [*combinations]
    return [
        each
        if each.values["baseline"] is not None
        else replace(each, values=each.values | {"baseline": RAW})
        for each in combinations
    ]


def _compose_sweep(name: str, jobs: Sequence[tuple[str, ...]], folder: str) -> Combinations:
    """Compose the combination of each job; one that repeats an earlier combination is left out.

    jobs: the overrides of each job.
    """
    concerns = Concerns()
    found = dict[tuple[str, ...], Combination]()
    # Whether an option lacks a setting does not depend on the setting's value. A sweep may have
    # many values, so this is found out only once for each choice of options.
    known: dict[tuple[str, ...], dict[str, ConfigError]] = {}
    for overrides in jobs:
        choices = tuple(text for text in overrides if not VALUE_IN_OPTION.match(text))
        lacking = known.setdefault(choices, {})
        cfg, own = _compose_without_foreign_settings(name, overrides, lacking, len(found), folder)
        if own not in found:
            found[own] = _add_job(concerns, combination_of(cfg), lacking)
        elif not lacking:
            _check_repetition(found[own])
    return Combinations(each=[*found.values()], concerns=concerns.lines())


def _check_repetition(combination: Combination) -> None:
    """Raise ConfigError for a job that was typed twice, if its launcher would run it twice."""
    if combination.launcher == BASIC:
        return
    # Another launcher of Hydra would number the repetition as a job of its own.
    job = " ".join(map(override_text, combination.overrides))
    reason = f"{job}: this job was typed twice; allowed: each value once"
    raise ConfigError(f"hydra/launcher={combination.launcher}: {reason}")


def _add_job(
    concerns: Concerns, combination: Combination, lacking: Mapping[str, ConfigError]
) -> Combination:
    """The combination without those settings of the experiment that its options do not have.

    concerns: counts the settings that the job has and lacks. lacking: settings of the command line
    that were left out already, with their errors.
    """
    choices, overrides = combination.choices, combination.overrides
    values = deepcopy(combination.values)
    concerns.add_job({**lacking, **leave_out_of_experiment(choices, values, overrides)})
    concerns.add_settings(overrides, choices)
    return replace(combination, values=values)


def _compose_without_foreign_settings(
    name: str,
    overrides: tuple[str, ...],
    lacking: dict[str, ConfigError],
    number: int = 0,
    folder: str | None = None,
) -> tuple[DictConfig, tuple[str, ...]]:
    """Compose a job without the settings that its options lack: (configuration, its overrides).

    lacking: settings that the options are known to lack, with their errors; further ones are added.
    number: number of the job in its sweep. folder: folder of the sweep; None: as configured.
    """
    given, overrides = overrides, without_force(overrides)
    for setting in lacking:
        overrides = leave_out(overrides, setting)
    # Hydra reports only one unknown setting at a time, so the job is composed again without it.
    while True:
        try:
            return _compose(name, overrides, number, folder), overrides
        except ForeignSetting as error:
            setting, rest = error.name, leave_out(overrides, error.name)
            if rest == overrides:
                raise
            is_forced = any(text.startswith(f"++{setting}=") for text in given)
            # A yaml file may name a class of the user's own. Then ++ adds an argument for it.
            if is_forced and _is_own_code(name, rest, setting.rpartition(".")[0]):
                overrides = tuple(
                    f"++{text}" if name_in(text) == setting else text for text in overrides
                )
            else:
                lacking[setting], overrides = error, rest


def _is_own_code(name: str, overrides: Sequence[str], group: str) -> bool:
    """True if the option of the job is a class or a function of the user's own."""
    choices = [text for text in overrides if not VALUE_IN_OPTION.match(text)]
    # Any other error in these choices is reported when the job itself is composed.
    with suppress(HydraException):
        target = OmegaConf.select(hydra_compose(name, choices), f"{group}._target_")
        return isinstance(target, str) and not target.startswith(BUILTIN_OPTIONS)
    return False


def compose_each(
    line: CommandLine, jobs: Sequence[Sequence[str]], folder: Path
) -> list[Combination]:
    """Compose a combination for each list of overrides, as the jobs of one sweep in that folder.

    line: a command line with flags that may name folders of options. Raises ConfigError and Hydra's
    exceptions.
    """
    # Composing takes much longer than changing a value. Jobs that differ only in settings at the
    # top level are therefore composed once; their values are changed in copies.
    with compose_api(line):
        name = line.config_name or CONFIG_NAME
        names = {each.name for each in settings()}
        bases: dict[tuple[str, ...], DictConfig] = {}
        combinations = []
        for number, overrides in enumerate(jobs):
            of_settings = [text for text in overrides if text.partition("=")[0] in names]
            others = tuple(text for text in overrides if text not in of_settings)
            if others not in bases:
                bases[others] = _compose(name, others, 0, str(folder))
            cfg = _change_settings(deepcopy(bases[others]), overrides, of_settings, number)
            combinations.append(combination_of(cfg))
        return combinations


def _change_settings(
    cfg: DictConfig, overrides: Sequence[str], changes: Sequence[str], number: int
) -> DictConfig:
    """Turn the configuration into that of job `number` of a sweep; only the top level changes.

    overrides: all overrides of the job. changes: those of its overrides that are not applied yet.
    """
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        cfg.hydra.overrides.task = [*overrides]
    return change_values(cfg, parse_overrides(changes))


def combination_of(cfg: DictConfig, hydra_conf: HydraConf | None = None) -> Combination:
    """The combination that a composed configuration describes. Raises OmegaConf's errors.

    hydra_conf: Hydra's part, if the configuration does not contain it.
    """
    node: Any = cfg.hydra if hydra_conf is None else hydra_conf
    job = OmegaConf.masked_copy(cfg, [str(name) for name in cfg if name != "hydra"])
    values = expand_homes(OmegaConf.to_container(job, resolve=True))
    choices = {name: str(choice) for name, choice in node.runtime.choices.items()}
    is_single = node.mode != RunMode.MULTIRUN
    folder = Path(node.run.dir if is_single else node.sweep.dir).absolute()
    return Combination(
        values=values,
        choices={name: choice for name, choice in choices.items() if "hydra/" not in name},
        overrides=tuple(node.overrides.task),
        launcher=choices["hydra/launcher"],
        launcher_settings=OmegaConf.to_container(node.launcher),  # pyright: ignore[reportArgumentType]
        folder=folder / ("0" if is_single else str(node.sweep.subdir)),
        sweep_folder=folder,
    )


def _compose_first(name: str, line: CommandLine) -> DictConfig:
    """The configuration of a single job, or of the first job of a sweep.

    Raises Hydra's error for several values without -m.
    """
    values = override_values(parse_overrides(line.overrides))
    first_values = tuple(each[0] for each in values if each)
    if line.is_sweep:
        return _compose_without_foreign_settings(name, first_values, {})[0]
    try:
        return _compose(name, line.overrides)
    # An experiment may turn on the sweep mode, in which several values are no error. Only the
    # composed configuration shows that.
    except (ConfigCompositionException, ForeignSetting):
        with suppress(HydraException):
            cfg, _ = _compose_without_foreign_settings(name, first_values, {})
            if cfg.hydra.mode == RunMode.MULTIRUN:
                return cfg
        raise


def _compose(
    name: str, overrides: Sequence[str], number: int = 0, sweep_dir: str | None = None
) -> DictConfig:
    """The configuration with Hydra's part, which also becomes the global HydraConfig.

    sweep_dir: folder of the job's sweep; None: as configured. Raises ForeignSetting for a setting
    that the job's option lacks, and Hydra's exceptions.
    """
    try:
        cfg = hydra_compose(name, list(overrides), return_hydra_config=True)
    except ConfigCompositionException as error:
        if setting := find_foreign_setting(str(error)):
            raise ForeignSetting(explain_setting(name, overrides, setting), setting) from None
        raise
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num = number
        cfg.hydra.job.id = str(number)
        if sweep_dir is not None:
            cfg.hydra.mode, cfg.hydra.sweep.dir = RunMode.MULTIRUN, sweep_dir
    HydraConfig.instance().set_config(cfg)
    return cfg


def _check_sweeper(cfg: DictConfig) -> None:
    """Raise ConfigError for any sweeper of Hydra but the basic one."""
    if (name := cfg.hydra.runtime.choices["hydra/sweeper"]) != BASIC:
        reason = "all jobs have to be known before the first trial runs"
        raise ConfigError(f"hydra/sweeper={name}: {reason}; allowed: {BASIC}")
