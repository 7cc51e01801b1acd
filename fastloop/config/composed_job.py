"""Compose the configuration of one job by Hydra, with or without its foreign settings.

A job chooses one option of each group, such as loader=raw of the group `loader`. A setting is
foreign to the job if the chosen option lacks the setting, as loader=raw lacks `loader.num_threads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fastloop.config.command_line import expand_homes
from fastloop.config.foreign_settings import (
    ForeignSetting,
    explain_foreign_setting,
    find_foreign_setting,
    leave_out,
    name_in,
    without_force,
)
from fastloop.config.hydra_api import VALUE_IN_OPTION, hydra_compose
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import BUILTIN_OPTIONS


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
    left_out: Mapping[str, ConfigError] = field(default_factory=dict)
    """Name of each foreign setting -> the error to raise if no job of the sweep has the setting."""


@dataclass(frozen=True, kw_only=True)
class ComposedJob:
    """A job that was composed without its foreign settings."""

    cfg: DictConfig
    """The configuration, with Hydra's part."""
    overrides: tuple[str, ...]
    """The overrides that the configuration was composed from, without foreign settings."""
    left_out: Mapping[str, ConfigError]
    """Name of each foreign setting -> the error to raise if no job of the sweep has the setting."""


def compose_without_foreign_settings(
    name: str,
    overrides: Sequence[str],
    known: Mapping[str, ConfigError] = MappingProxyType({}),
    number: int = 0,
    folder: str | None = None,
) -> ComposedJob:
    """Compose a job without its foreign settings.

    An override is forced if it begins with ++. If the option is code of the user's own, a forced
    setting is an argument for that code, and not foreign.

    name: name of the main yaml. known: settings that are known to be foreign, with their errors.
    number: number of the job in its sweep. folder: folder of the sweep; None: as configured. Raises
    Hydra's exceptions.
    """
    left_out = dict(known)
    applied = without_force(overrides)
    for setting in known:
        applied = leave_out(applied, setting)
    # Hydra reports only one unknown setting at a time, so the job is composed again without it.
    while True:
        try:
            cfg = compose_config(name, applied, number, folder)
            return ComposedJob(cfg=cfg, overrides=applied, left_out=left_out)
        except ForeignSetting as error:
            setting, rest = error.name, leave_out(applied, error.name)
            if rest == applied:
                raise
            is_forced = any(text.startswith(f"++{setting}=") for text in overrides)
            if is_forced and _is_own_code(name, rest, setting.rpartition(".")[0]):
                applied = tuple(
                    f"++{text}" if name_in(text) == setting else text for text in applied
                )
            else:
                left_out[setting], applied = error, rest


def _is_own_code(name: str, overrides: Sequence[str], group: str) -> bool:
    """True if the option of the job is a class or a function of the user's own."""
    choices = [text for text in overrides if not VALUE_IN_OPTION.match(text)]
    # Any other error in these choices is reported when the job itself is composed.
    with suppress(HydraException):
        target = OmegaConf.select(hydra_compose(name, choices), f"{group}._target_")
        return isinstance(target, str) and not target.startswith(BUILTIN_OPTIONS)
    return False


def compose_config(
    name: str, overrides: Sequence[str], number: int = 0, sweep_dir: str | None = None
) -> DictConfig:
    """Compose the configuration with Hydra's part, and set Hydra's global HydraConfig to that part.

    name: name of the main yaml. number: number of the job in its sweep. sweep_dir: folder of the
    sweep; None: as configured. Raises ForeignSetting for a setting that the job's option lacks, and
    Hydra's exceptions.
    """
    try:
        cfg = hydra_compose(name, overrides)
    except ConfigCompositionException as error:
        if setting := find_foreign_setting(str(error)):
            raise ForeignSetting(
                explain_foreign_setting(name, overrides, setting), setting
            ) from None
        raise
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num = number
        cfg.hydra.job.id = str(number)
        if sweep_dir is not None:
            cfg.hydra.mode, cfg.hydra.sweep.dir = RunMode.MULTIRUN, sweep_dir
    HydraConfig.instance().set_config(cfg)
    return cfg


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
