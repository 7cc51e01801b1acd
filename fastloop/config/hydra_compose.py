"""Hydra's Compose API, with the folders of a command line and errors in one line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fastloop.config.catalogue import overridable_names, resource_folder
from fastloop.config.command_line import CommandLine
from fastloop.config.foreign_settings import (
    ForeignSetting,
    describe_foreign_setting,
    find_foreign_setting,
)
from fastloop.config.help import help_text
from fastloop.config.messages import ConfigError, unknown_setting

CONFIG_NAME = "config"
VERSION_BASE = "1.3"


def register_resolvers() -> None:
    """Register ${fastloop_help:}, the text of --help, with $ escaped for Hydra's help template."""
    OmegaConf.register_new_resolver(
        "fastloop_help", lambda: help_text().replace("$", "$$"), replace=True
    )


@contextmanager
def compose_api(line: CommandLine) -> Iterator[None]:
    """Initialize Hydra's Compose API with conf/, or with the folders that the command line
    names."""
    if line.config_dir:
        _add_config_dir(Path(line.config_dir).absolute())
    folder = Path(line.config_path or resource_folder("conf")).absolute()
    # Hydra has a global object, which refuses to be initialized twice.
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(folder), job_name="fastloop", version_base=VERSION_BASE):
        yield


def _add_config_dir(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir={folder}: no such folder")

    class ConfigDir(SearchPathPlugin):
        """Search path plugin that adds the folder of -cd after conf/."""

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            anchor = SearchPathQuery(provider="schema")
            search_path.prepend("command-line", f"file://{folder}", anchor)

    Plugins.instance().register(ConfigDir)


def compose_config(
    name: str, overrides: Sequence[str], number: int = 0, sweep_dir: str | None = None
) -> DictConfig:
    """The configuration with Hydra's part, which also becomes the global HydraConfig.

    sweep_dir: folder of the job's sweep; None: as configured.
    """
    try:
        cfg = hydra_compose(name, list(overrides), return_hydra_config=True)
    except ConfigCompositionException as error:
        if setting := find_foreign_setting(str(error)):
            message = describe_foreign_setting(setting, overrides)
            message = message or unknown_setting(setting, overridable_names())
            raise ForeignSetting(message, setting) from None
        raise
    with read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.hydra.job.num = number
        cfg.hydra.job.id = str(number)
        if sweep_dir is not None:
            cfg.hydra.mode, cfg.hydra.sweep.dir = RunMode.MULTIRUN, sweep_dir
    HydraConfig.instance().set_config(cfg)
    return cfg


def hydra_compose(name: str, overrides: list[str], **options: Any) -> DictConfig:
    """The composed configuration. Raises ConfigError if Hydra only warns."""
    # Hydra only warns of a missing folder, and then of options that it would have contained.
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"provider=hydra\.searchpath")
        try:
            return hydra.compose(name, overrides, **options)
        except UserWarning as warning:
            path = re.search(r"path=(.*) is not available", str(warning))
            missing = path.group(1) if path else warning
            raise ConfigError(f"hydra.searchpath: there is no folder {missing}") from None
