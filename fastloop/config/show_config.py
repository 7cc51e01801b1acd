"""The answer to --cfg: the configuration that the job of a command line gets, as yaml."""

from __future__ import annotations

import argparse
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import Container, OmegaConf

from fastloop.config.command_line import CommandLine
from fastloop.config.hydra_api import CONFIG_NAME, compose_api, hydra_compose
from fastloop.config.messages import ConfigError

WITH_CFG = {"--cfg", "--package", "--resolve", "--config-path", "--config-name", "--config-dir"}
"""Flags that may stand beside --cfg."""


def config_text(line: CommandLine) -> str | None:
    """The text that --cfg prints; None for a line without --cfg, or with further questions.

    A store that gives way to the samples, as with a collate of the user's own, is still in it: this
    is decided when the job is built.

    Raises ConfigError for a package that is not there, and Hydra's exceptions.
    """
    flags = {flag for flag in line.flags if flag.startswith("--")}
    if "--cfg" not in flags or not flags <= WITH_CFG:
        return None
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cfg")
    parser.add_argument("--package")
    parser.add_argument("--resolve", action="store_true")
    asked, _ = parser.parse_known_args([*line.flags])
    # Hydra itself would show the defaults that the composition of a job replaces or leaves out.
    with compose_api(line):
        name = line.config_name or CONFIG_NAME
        cfg: Any = hydra_compose(name, list(line.overrides), return_hydra_config=True)
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


def _as_yaml(cfg: Any, is_resolved: bool) -> str:
    if is_resolved:
        OmegaConf.resolve(cfg)
    return OmegaConf.to_yaml(cfg)
