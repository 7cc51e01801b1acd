"""Yaml files of conf/, read without composing them."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from fastloop.config.catalogue import resource_folder


def option_values(group: str, option: str) -> Any:
    """The content of an option's yaml, with unresolved interpolations."""
    path = resource_folder("conf") / group / f"{option}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path))
