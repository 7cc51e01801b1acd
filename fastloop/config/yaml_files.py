"""Yaml files of conf/, read without composing them."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf

from fastloop.config.catalogue import resource_folder


# Each job of a sweep asks for the defaults of five groups: reading them again took a seventh of the
# time of composing a job.
@cache
def option_values(group: str, option: str) -> MappingProxyType[str, Any]:
    """The content of an option's yaml, with unresolved interpolations; read once a process."""
    path = resource_folder("conf") / group / f"{option}.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(path))
    return MappingProxyType(values)
