"""Write the answers to --help, --cfg and --info from the composed configuration of one job."""

from __future__ import annotations

import argparse
from copy import deepcopy
from string import Template
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, OmegaConf

from fastloop.config.command_line import CommandLine
from fastloop.config.hydra_api import CONFIG_NAME, compose_api, hydra_compose
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import pass_to_own_code

FILE_FLAGS = {"--config-path", "--config-name", "--config-dir"}
"""Flags that name the user's own yaml files."""
WITH_CFG = FILE_FLAGS | {"--cfg", "--package", "--resolve"}
"""Flags that `config_text` can answer together. Hydra itself answers a line with any other flag."""
WITH_INFO = FILE_FLAGS | {"--info"}
"""Flags that `print_config_info` can answer together; Hydra answers any other flag."""
WITH_CONFIG = ("all", "config")
"""Values of --info that show the configuration."""


def config_text(line: CommandLine) -> str | None:
    """The text that --cfg prints; None for a line without --cfg, or with flags not in WITH_CFG.

    A job may leave out its store, for example for a collate of the user's own. This is decided only
    when the job is built, so the text may contain a store that the job leaves out.

    Raises ConfigError for a --package that the configuration lacks, and Hydra's exceptions.
    """
    asked = _read_flags(line)
    if asked.cfg is None or not _flags_of(line) <= WITH_CFG:
        return None
    with compose_api(line):
        cfg: Any = _compose(line)
        HydraConfig.instance().set_config(cfg)
        OmegaConf.set_readonly(cfg.hydra, None)
        cfg = GlobalHydra.instance().hydra.get_sanitized_cfg(cfg, asked.cfg)  # pyright: ignore
        if asked.package in (None, "_global_"):
            return _as_yaml(cfg, asked.resolve)
        part = OmegaConf.select(cfg, asked.package, default=...)
    if part is ...:
        raise ConfigError(f"--package={asked.package}: the configuration has no such part")
    if not isinstance(part, Container):
        return "null\n" if part is None else f"{part}\n"
    return f"# @package {asked.package}\n{_as_yaml(part, asked.resolve)}"


def print_config_info(line: CommandLine) -> bool:
    """Print the answer to --info, with the configuration that --cfg shows; returns True.

    Returns False, and prints nothing, for a line without --info, for values of --info that show no
    configuration, and for flags not in WITH_INFO. Raises ConfigError and Hydra's exceptions.
    """
    asked = _read_flags(line)
    if asked.info not in WITH_CONFIG or not _flags_of(line) <= WITH_INFO:
        return False
    with compose_api(line):
        cfg = _compose(line)
        hydra: Any = GlobalHydra.instance().hydra
        # Hydra prints the answer in parts, and would compose the configuration anew for each part.
        hydra.compose_config = lambda **_: deepcopy(cfg)
        name = line.config_name or CONFIG_NAME
        hydra.show_info(asked.info, name, [*pass_to_own_code(line.overrides)])
    return True


def _flags_of(line: CommandLine) -> set[str]:
    """The names of the line's flags, without their values."""
    return {flag for flag in line.flags if flag.startswith("--")}


def _read_flags(line: CommandLine) -> argparse.Namespace:
    """The values of --cfg, --info and --package, None for a missing flag; and --resolve, a bool."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--cfg", "--info", "--package"):
        parser.add_argument(flag)
    parser.add_argument("--resolve", action="store_true")
    return parser.parse_known_args([*line.flags])[0]


def _compose(line: CommandLine) -> DictConfig:
    """The configuration, with Hydra's own part; to be called in the context of `compose_api`."""
    # Hydra itself would also show the defaults that `hydra_compose` replaces or removes.
    name = line.config_name or CONFIG_NAME
    return hydra_compose(name, list(line.overrides), return_hydra_config=True)


def compose_help(line: CommandLine) -> str | None:
    """The text of --help, from the template of the composed configuration.

    None if the template comes from a yaml of the user's own, and has names that only Hydra can
    replace. Raises ConfigError and Hydra's exceptions.
    """
    # Hydra itself would first list all groups and options, which takes seconds, even if the
    # template does not contain them.
    with compose_api(line):
        cfg = _compose(line)
        HydraConfig.instance().set_config(cfg)
        template = Template(cfg.hydra.help.template)
        return None if template.get_identifiers() else template.substitute()


def _as_yaml(cfg: Any, is_resolved: bool) -> str:
    """The configuration as YAML; is_resolved: True replaces interpolations by their values."""
    if is_resolved:
        OmegaConf.resolve(cfg)
    return OmegaConf.to_yaml(cfg)
