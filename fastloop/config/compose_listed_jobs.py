"""Compose the jobs of a sweep from lists of overrides, such as the candidates of tuning.

Composing takes much longer than changing a value. Jobs that differ only in settings at the top
level, such as num_workers, are therefore composed once; their values are changed in copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

from omegaconf import DictConfig, open_dict, read_write

from fastloop.config.catalogue import setting_names
from fastloop.config.command_line import CommandLine, parse_overrides
from fastloop.config.composed_job import Combination, combination_of, compose_config
from fastloop.config.hydra_api import CONFIG_NAME, change_values, compose_api


def compose_listed_jobs(
    line: CommandLine, jobs: Sequence[Sequence[str]], folder: Path
) -> list[Combination]:
    """Compose the configuration of each job of a sweep.

    line: a command line with flags that may name folders of options; its overrides are ignored.
    jobs: the overrides of each job. folder: the folder of the sweep. Raises ConfigError and Hydra's
    exceptions.
    """
    with compose_api(line):
        name = line.config_name or CONFIG_NAME
        bases: dict[tuple[str, ...], DictConfig] = {}
        combinations = []
        for number, overrides in enumerate(jobs):
            of_settings = [text for text in overrides if text.partition("=")[0] in setting_names()]
            others = tuple(text for text in overrides if text not in of_settings)
            if others not in bases:
                bases[others] = compose_config(name, others, 0, str(folder))
            cfg = _change_settings(deepcopy(bases[others]), overrides, of_settings, number)
            combinations.append(combination_of(cfg))
        return combinations


def _change_settings(
    cfg: DictConfig, overrides: Sequence[str], changes: Sequence[str], number: int
) -> DictConfig:
    """Apply a job's overrides of settings to the configuration in place, and return it.

    overrides: all overrides of the job, which the configuration records. changes: the overrides of
    settings at the top level, which are not applied yet. number: number of the job in its sweep.
    """
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
        cfg.hydra.overrides.task = [*overrides]
    return change_values(cfg, parse_overrides(changes))
