"""The settings of `fastloop tune`: conf/tune.yaml, changed by the command line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from fastloop.config.catalogue import resource_folder

FILE = "tune.yaml"
TRIED = "tried"


@cache
def tune_defaults() -> dict[str, Any]:
    """The content of conf/tune.yaml."""
    values: Any = OmegaConf.to_container(OmegaConf.load(resource_folder("conf") / FILE))
    return values


def split_arguments(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of tune by name, and the other arguments, which belong to a job.

    The last argument of a name wins; null stands for the default.
    """
    settings = {name: value for name, value in tune_defaults().items() if name != TRIED}
    left = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in settings:
            settings[name] = None if value == "null" else value
        else:
            left.append(argument)
    return settings, left
