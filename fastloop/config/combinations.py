"""Compose all combinations of a command line with Hydra's Compose API, before any job runs.

A combination is the composed configuration of one job. A sweep has a job for each combination of
the values of its overrides. A setting is foreign to a job if the job's option lacks the setting, as
loader=raw lacks `loader.num_threads`. In a sweep, each job is composed without its foreign
settings. For each setting that is foreign to some of the jobs, a line says how many jobs have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

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
from fastloop.config.hydra_api import CONFIG_NAME, VALUE_IN_OPTION, compose_api
from fastloop.config.messages import ConfigError

ALL_LOADERS = re.compile(r"loader=glob\(")
"""Start of an override that names loaders by a pattern."""
RAW = "raw"
"""Name of the loader that reads the dataset without a store."""
BASIC = "basic"
"""Name of Hydra's default launcher, and of its default sweeper."""
SHOWN_OPTIONS = 4
"""Maximum number of options that a line about a setting lists; it lists none if there are more."""


@dataclass(frozen=True, kw_only=True)
class Combinations:
    """All combinations of a command line."""

    each: list[Combination]
    partial_settings: tuple[str, ...] = ()
    """A line for each setting that only some of the combinations have."""


@dataclass(frozen=True, kw_only=True)
class FittedCombination:
    """A combination without the job's foreign settings."""

    combination: Combination
    left_out: Mapping[str, ConfigError]
    """Name of a foreign setting -> the error that is raised if all jobs lack the setting."""


def compose_combinations(line: CommandLine) -> Combinations:
    """Compose all combinations of a command line, in the order of Hydra's basic sweeper.

    Each job is composed without its foreign settings. Of jobs that are then equal, or that were
    typed twice, only one is kept. Raises ConfigError and Hydra's exceptions.
    """
    with compose_api(line):
        name = line.config_name or CONFIG_NAME
        first = _compose_first(name, line)
        if not line.is_sweep and first.hydra.mode != RunMode.MULTIRUN:
            return _gather([_fit_experiment(combination_of(first), {})])
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
    """Make raw the baseline of each combination without a baseline, if raw is among the loaders."""
    # The default baseline is the job that was typed first. A pattern lists loaders in alphabetical
    # order, so its first loader is a baseline by chance only.
    if not any(each.choices["loader"] == RAW for each in combinations):
        return [*combinations]
    return [
        each
        if each.values["baseline"] is not None
        else replace(each, values=each.values | {"baseline": RAW})
        for each in combinations
    ]


def _compose_sweep(name: str, jobs: Sequence[tuple[str, ...]], folder: str) -> Combinations:
    """Compose the combination of each job; jobs that are equal to an earlier job are left out.

    name: name of the main yaml. jobs: the overrides of each job. folder: the folder of the sweep.
    """
    found = dict[tuple[str, ...], FittedCombination]()
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
            _check_repetition(found[job.overrides].combination)
    return _gather([*found.values()])


def _check_repetition(combination: Combination) -> None:
    """Raise ConfigError for a job that was typed twice, unless Hydra's basic launcher runs it."""
    if combination.launcher == BASIC:
        return
    # Another launcher would number the repetition as a job of its own, and run the job twice.
    job = " ".join(map(override_text, combination.overrides))
    reason = f"{job}: this job was typed twice; allowed: each value once"
    raise ConfigError(f"hydra/launcher={combination.launcher}: {reason}")


def _fit_experiment(
    combination: Combination, left_out: Mapping[str, ConfigError]
) -> FittedCombination:
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
    return FittedCombination(
        combination=replace(combination, values=values), left_out={**left_out, **foreign}
    )


def _gather(jobs: Sequence[FittedCombination]) -> Combinations:
    """The combinations of all jobs, with the lines about settings that only some of the jobs have.

    Raises ConfigError for a setting that no job has.
    """
    return Combinations(
        each=[job.combination for job in jobs],
        partial_settings=_describe_partial_settings(jobs),
    )


def _describe_partial_settings(jobs: Sequence[FittedCombination]) -> tuple[str, ...]:
    """A line for each setting that only some of the jobs have, with the number of these jobs.

    Raises ConfigError for a setting that no job has.
    """
    errors: dict[str, list[ConfigError]] = {}
    for job in jobs:
        for name, error in job.left_out.items():
            errors.setdefault(name, []).append(error)
    lines = []
    for name, of_name in errors.items():
        # If no job has the setting, the user has made a mistake.
        if len(of_name) == len(jobs):
            raise of_name[0]
        options, overrides = _find_uses([job.combination for job in jobs], name)
        shown = override_text(overrides[0]) if len(overrides) == 1 else name
        line = f"{shown} concerns {len(jobs) - len(of_name)} of {len(jobs)} jobs"
        listed = f": {', '.join(options)}" if 0 < len(options) <= SHOWN_OPTIONS else ""
        lines.append(line + listed)
    return tuple(lines)


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


def _compose_first(name: str, line: CommandLine) -> DictConfig:
    """The configuration of a single job, or of the first job of a sweep, with Hydra's part.

    name: name of the main yaml. Raises Hydra's error if a setting has several values without -m.
    """
    values = override_values(parse_overrides(line.overrides))
    first_values = tuple(each[0] for each in values if each)
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


def _check_sweeper(cfg: DictConfig) -> None:
    """Raise ConfigError unless the sweeper is Hydra's basic one."""
    if (name := cfg.hydra.runtime.choices["hydra/sweeper"]) != BASIC:
        reason = "all jobs have to be known before the first trial runs"
        raise ConfigError(f"hydra/sweeper={name}: {reason}; allowed: {BASIC}")
