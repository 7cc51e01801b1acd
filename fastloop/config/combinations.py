"""Compose the combinations of a command line or of lists of overrides, before any job runs.

A combination is the composed configuration of one job. A sweep has a job for each combination of
the values of its overrides. A setting is foreign to a job if the job's option lacks the setting, as
loader=raw lacks `loader.num_threads`. In a sweep, each job is composed without its foreign
settings. For each setting that is foreign to some of the jobs, a line says how many jobs have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict, read_write

from fastloop.config.catalogue import setting_names
from fastloop.config.command_line import CommandLine, parse_overrides
from fastloop.config.composed_job import (
    Combination,
    combination_of,
    compose_config,
    compose_without_foreign_settings,
)
from fastloop.config.expand_sweep import expand_jobs, override_values
from fastloop.config.foreign_settings import (
    ForeignSetting,
    find_foreign_in_experiment,
    name_in,
    override_text,
)
from fastloop.config.hydra_api import VALUE_IN_OPTION, change_values, compose_api
from fastloop.config.messages import ConfigError

ALL_LOADERS = re.compile(r"loader=glob\(")
"""Start of an override that names loaders by a pattern."""
RAW = "raw"
"""Name of the loader that reads the dataset without a store."""
BASIC = "basic"
"""Name of Hydra's default launcher, and of its default sweeper."""
SHOWN_OPTIONS = 4
"""Maximum number of options that a line about a setting lists; it lists none if there are more."""


def compose_combinations(line: CommandLine) -> list[Combination]:
    """Compose all combinations of a command line, in the order of Hydra's basic sweeper.

    Each job is composed without its foreign settings. A job that is then equal to an earlier job,
    or that was typed twice, is left out. Raises ConfigError, for example for a setting that no job
    has, and Hydra's exceptions.
    """
    with compose_api(line) as name:
        first = _compose_first(name, line)
        if not line.is_sweep and first.hydra.mode != RunMode.MULTIRUN:
            combinations = [_fit_experiment(combination_of(first), {})]
        else:
            combinations = _compose_sweep(name, line, first)
    _refuse_settings_of_no_job(combinations)
    return combinations


def _compose_first(name: str, line: CommandLine) -> DictConfig:
    """The configuration of a single job, or of the first job of a sweep, with Hydra's part.

    name: name of the main yaml. Raises Hydra's error if a setting has several values without -m.
    """
    first_values = [each[0] for each in override_values(parse_overrides(line.overrides))]
    if line.is_sweep:
        return compose_without_foreign_settings(name, first_values).cfg
    try:
        return compose_config(name, line.overrides)
    # An experiment may turn on the sweep mode, in which several values are no error. The mode is
    # known only once a configuration was composed from single values.
    except (ConfigCompositionException, ForeignSetting):
        with suppress(HydraException):
            cfg = compose_without_foreign_settings(name, first_values).cfg
            if cfg.hydra.mode == RunMode.MULTIRUN:
                return cfg
        raise


def _compose_sweep(name: str, line: CommandLine, first: DictConfig) -> list[Combination]:
    """Compose the combinations of a sweep.

    name: name of the main yaml. first: the configuration of the first job.
    """
    if (sweeper := first.hydra.runtime.choices["hydra/sweeper"]) != BASIC:
        reason = "all jobs have to be known before the first trial runs"
        raise ConfigError(f"hydra/sweeper={sweeper}: {reason}; allowed: {BASIC}")
    swept = [f"{key}={value}" for key, value in (first.hydra.sweeper.params or {}).items()]
    overrides = [*swept, *line.overrides]
    # The sweep's folder is resolved only once. Its name contains the time, and would otherwise
    # differ between jobs.
    folder = str(first.hydra.sweep.dir)
    combinations = _compose_jobs(name, expand_jobs(parse_overrides(overrides)), folder)
    if any(ALL_LOADERS.match(text) for text in overrides):
        return _with_baseline(combinations)
    return combinations


def _compose_jobs(name: str, jobs: Sequence[tuple[str, ...]], folder: str) -> list[Combination]:
    """Compose the combination of each job; jobs that are equal to an earlier job are left out.

    name: name of the main yaml. jobs: the overrides of each job. folder: the folder of the sweep.
    """
    found: dict[tuple[str, ...], Combination] = {}
    # The foreign settings of a job depend on its options, but not on the values of settings. A
    # sweep may have many values, so foreign settings are found once for each choice of options.
    known: dict[tuple[str, ...], Mapping[str, ConfigError]] = {}
    for overrides in jobs:
        choices = tuple(text for text in overrides if not VALUE_IN_OPTION.match(text))
        job = compose_without_foreign_settings(
            name, overrides, known.get(choices, {}), len(found), folder
        )
        known[choices] = job.left_out
        if job.overrides not in found:
            found[job.overrides] = _fit_experiment(combination_of(job.cfg), job.left_out)
        elif not job.left_out:
            _check_repetition(found[job.overrides])
    return [*found.values()]


def _check_repetition(combination: Combination) -> None:
    """Raise ConfigError for a job that was typed twice, unless Hydra's basic launcher runs it."""
    if combination.launcher == BASIC:
        return
    # Another launcher would number the repetition as a job of its own, and run the job twice.
    job = " ".join(map(override_text, combination.overrides))
    reason = f"{job}: this job was typed twice; allowed: each value once"
    raise ConfigError(f"hydra/launcher={combination.launcher}: {reason}")


def _fit_experiment(combination: Combination, left_out: Mapping[str, ConfigError]) -> Combination:
    """Leave out the foreign settings of the job's experiment.

    An experiment is a yaml file of experiments/ with options and settings of a study, which
    `experiment=<name>` chooses. left_out: the foreign settings of the command line, with their
    errors; the combination was composed without them.
    """
    foreign = find_foreign_in_experiment(
        combination.choices, combination.values, combination.overrides
    )
    values = combination.values
    for name in foreign:
        group, _, setting = name.partition(".")
        kept = {key: value for key, value in values[group].items() if key != setting}
        values = {**values, group: kept}
    return replace(combination, values=values, left_out={**left_out, **foreign})


def _with_baseline(combinations: list[Combination]) -> list[Combination]:
    """Make raw the baseline of each combination without a baseline, if raw is among the loaders."""
    # The default baseline is the job that was typed first. A pattern lists loaders in alphabetical
    # order, so its first loader is a baseline by chance only.
    if not any(each.choices["loader"] == RAW for each in combinations):
        return combinations
    return [
        each
        if each.values["baseline"] is not None
        else replace(each, values=each.values | {"baseline": RAW})
        for each in combinations
    ]


def _refuse_settings_of_no_job(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError for a setting that no job has: the user has made a mistake."""
    for name, error in combinations[0].left_out.items():
        if all(name in each.left_out for each in combinations):
            raise error


def describe_partial_settings(combinations: Sequence[Combination]) -> list[str]:
    """A line for each setting that only some of the jobs have, with the number of these jobs."""
    lines = []
    for name in dict.fromkeys(name for each in combinations for name in each.left_out):
        count = sum(name not in each.left_out for each in combinations)
        options, overrides = _find_uses(combinations, name)
        shown = override_text(overrides[0]) if len(overrides) == 1 else name
        listed = f": {', '.join(options)}" if 0 < len(options) <= SHOWN_OPTIONS else ""
        lines.append(f"{shown} concerns {count} of {len(combinations)} jobs{listed}")
    return lines


def _find_uses(combinations: Sequence[Combination], name: str) -> tuple[list[str], list[str]]:
    """Find the options that have a setting, and the overrides that change the setting.

    name: the setting, such as loader.num_threads. Returns (options, overrides), each without
    repetitions and in the order of the combinations.
    """
    group = name.rpartition("@")[2].partition(".")[0]
    uses = [
        (f"{group}={each.choices[group]}", text)
        for each in combinations
        for text in each.overrides
        if group in each.choices and name_in(text) == name
    ]
    options, overrides = (dict.fromkeys(use[place] for use in uses) for place in (0, 1))
    return [*options], [*overrides]


def compose_listed_jobs(
    line: CommandLine, jobs: Sequence[Sequence[str]], folder: Path
) -> list[Combination]:
    """Compose the combination of each job of a sweep, such as the candidates of tuning.

    line: a command line with flags that may name folders of options; its overrides are ignored.
    jobs: the overrides of each job. folder: the folder of the sweep. Raises ConfigError and Hydra's
    exceptions.
    """
    # Composing takes much longer than changing a value. Jobs that differ only in settings at the
    # top level, such as num_workers, are therefore composed once, and changed in copies.
    with compose_api(line) as name:
        composed: dict[tuple[str, ...], DictConfig] = {}
        combinations = []
        for number, overrides in enumerate(jobs):
            changes = [text for text in overrides if text.partition("=")[0] in setting_names()]
            others = tuple(text for text in overrides if text not in changes)
            if others not in composed:
                composed[others] = compose_config(name, others, 0, str(folder))
            cfg = deepcopy(composed[others])
            with read_write(cfg.hydra), open_dict(cfg.hydra):
                cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
                cfg.hydra.overrides.task = [*overrides]
            change_values(cfg, parse_overrides(changes))
            combinations.append(combination_of(cfg))
        return combinations
