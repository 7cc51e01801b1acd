"""Print the answer to --version, --help, --cfg, --info and similar flags, which measure nothing."""

from __future__ import annotations

import argparse
from copy import deepcopy
from importlib.metadata import version
from string import Template
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, DictConfig, OmegaConf

from fastloop.config.command_line import CommandLine, parse_overrides
from fastloop.config.hydra_api import compose_api, hydra_compose
from fastloop.config.hydra_launcher import run_hydra
from fastloop.config.messages import ConfigError
from fastloop.config.user_options import pass_to_own_code

FILE_FLAGS = {"--config-path", "--config-name", "--config-dir"}
"""Flags that name the user's own yaml files."""
WITH_CFG = FILE_FLAGS | {"--cfg", "--package", "--resolve"}
"""Flags that can be answered together with --cfg. Hydra itself answers a line with other flags."""
WITH_INFO = FILE_FLAGS | {"--info"}
"""Flags that can be answered together with --info. Hydra itself answers a line with other flags."""
WITH_CONFIG = ("all", "config")
"""Values of --info that show the configuration."""


def print_information(line: CommandLine) -> bool:
    """Print the answer to the flags of the line, and return True.

    Returns False if the line has no flag that asks for information. Raises ConfigError and Hydra's
    exceptions.
    """
    if not line.prints_info:
        return False
    if "--version" in line.flags:
        print(f"fastloop {version('fastloop')}")
    elif "--help" in line.flags and (text := _help_text(line)) is not None:
        print(text)
    elif (text := _config_text(line)) is not None:
        print(text, end="")
    elif not _print_config_info(line):
        run_hydra(line, lambda _: None)
    return True


def _help_text(line: CommandLine) -> str | None:
    """The text of --help, from the template of the composed configuration.

    None if the template comes from a yaml of the user's own, and has names that only Hydra can
    replace.
    """
    # Hydra itself would first list all groups and options, which takes seconds, even if the
    # template does not contain them.
    with compose_api(line) as name:
        cfg = hydra_compose(name, line.overrides)
        # The template may contain ${hydra:...}, which Hydra looks up in this global object.
        HydraConfig.instance().set_config(cfg)
        template = Template(cfg.hydra.help.template)
        return None if template.get_identifiers() else template.substitute()


def _config_text(line: CommandLine) -> str | None:
    """The text that --cfg prints; None for a line without --cfg, or with flags not in WITH_CFG.

    A job may leave out its store, for example for a collate of the user's own. This is decided only
    when the job is built, so the text may contain a store that the job leaves out.
    """
    asked = _read_flags(line)
    if asked.cfg is None or not _flags_of(line) <= WITH_CFG:
        return None
    with compose_api(line) as name:
        cfg: Any = _compose(name, line)
        # The following lines repeat Hydra's own --cfg, which would compose the configuration with
        # the defaults that `hydra_compose` replaces or removes.
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


def _print_config_info(line: CommandLine) -> bool:
    """Print the answer to --info, with the configuration that --cfg shows; returns True.

    Returns False, and prints nothing, for a line without --info, for values of --info that show no
    configuration, and for flags not in WITH_INFO.
    """
    asked = _read_flags(line)
    if asked.info not in WITH_CONFIG or not _flags_of(line) <= WITH_INFO:
        return False
    with compose_api(line) as name:
        cfg = _compose(name, line)
        hydra: Any = GlobalHydra.instance().hydra
        # Hydra prints the answer in parts, and would compose the configuration anew for each part,
        # with the defaults that `hydra_compose` replaces or removes.
        hydra.compose_config = lambda **_: deepcopy(cfg)
        hydra.show_info(asked.info, name, [*pass_to_own_code(line.overrides)])
    return True


def _compose(name: str, line: CommandLine) -> DictConfig:
    """Compose the configuration to show; raises ConfigError for overrides that no job can have.

    name: name of the main yaml.
    """
    parse_overrides(line.overrides)
    return hydra_compose(name, line.overrides)


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


def _as_yaml(cfg: Any, is_resolved: bool) -> str:
    """The configuration as YAML; is_resolved: True replaces interpolations by their values."""
    if is_resolved:
        OmegaConf.resolve(cfg)
    return OmegaConf.to_yaml(cfg)
