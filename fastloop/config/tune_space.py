"""Read the settings of `fastloop tune` from conf/tune.yaml and the command line.

The setting `space` lists the settings and values to try, in Hydra's syntax. A candidate is one
combination of these values.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from fastloop.config.catalogue import default_options, find_group, resource_folder, setting_names
from fastloop.config.command_line import parse_overrides, read_command_line
from fastloop.config.expand_sweep import override_values
from fastloop.config.hydra_api import compose_api
from fastloop.config.messages import ConfigError
from fastloop.core.loading_settings import DECLARED

GROUPS = ("loader", "decoder", "collate", "placement", "execution")
"""Groups of options that may be tried, because they change neither the samples nor the model nor
the task."""
SETTINGS = (
    *(each.name for each in DECLARED.values() if each.is_tunable),
    *("pinned_buffers", "device_prefetch", "device_prefetch_by", "torch_threads"),
)
"""Settings at the top level that may be tried, for the same reason. An exception is batch_size,
which changes what a model learns: it is tried only if `space=` names it."""
MOST_CANDIDATES = 100_000
"""Maximum number of candidates in a space of the user's. Predictions for more would take minutes,
and most of the candidates would be combinations that no job can have."""
Space = Mapping[str, tuple[str, ...]]
"""Name of a setting -> name=value for every value that is tried."""
DEFAULTS_FILE = "tune.yaml"
TRIED = "tried"
"""The file of the defaults in conf/, and its entry for the default space."""


@cache
def tune_defaults() -> dict[str, Any]:
    """Read the content of conf/tune.yaml."""
    values: Any = OmegaConf.to_container(OmegaConf.load(resource_folder("conf") / DEFAULTS_FILE))
    return values


def split_arguments(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Split the arguments into (the settings of tune by name, the arguments that describe the job).

    A setting that no argument names has its default. The last argument of a name wins, and the
    value null becomes None.
    """
    given = {name: value for name, value in tune_defaults().items() if name != TRIED}
    left = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and name in given:
            given[name] = None if value == "null" else value
        else:
            left.append(argument)
    return given, left


def read_space(text: str | None, arguments: Sequence[str]) -> Space:
    """Parse the space of `space=`, or return the default one of conf/tune.yaml.

    arguments: arguments of the command; their flags name folders of options.
    Raises ConfigError for a setting or value that can't be tried.
    """
    words = (
        _split(text)
        if text is not None
        else [f"{k}={v}" for k, v in tune_defaults()[TRIED].items()]
    )
    with compose_api(read_command_line(arguments)):
        parsed = parse_overrides(words)
        for override in parsed:
            _check_name(override.key_or_group, override.input_line or "")
            if override.is_delete() or override.is_add() or override.is_force_add():
                raise ConfigError(f"space: {override.input_line}: allowed: name=a,b,c")
        values = override_values(parsed)
    count = math.prod(map(len, values))
    if text and count > MOST_CANDIDATES:
        allowed = f"allowed: at most {MOST_CANDIDATES:,}"
        raise ConfigError(f"space: these values make {count:,} candidates; {allowed}")
    names = [each[0].partition("=")[0] for each in values]
    return {name: tuple(each) for name, each in zip(names, values, strict=True)}


def _split(text: str) -> list[str]:
    """Split the text of a space into `name=values`; raises ConfigError for anything else."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"space={text}: {error}") from None
    if not words:
        raise ConfigError("space=: it is empty; allowed: name=a,b,c, separated by spaces")
    for word in words:
        if "=" not in word:
            raise ConfigError(f"space: {word}: allowed: name=a,b,c, separated by spaces")
    return words


def _check_name(name: str, shown: str) -> None:
    """Raise ConfigError for a setting that does not exist, or that must stay as it is."""
    group, dot, setting = name.partition(".")
    if name in GROUPS or name in SETTINGS:
        return
    if dot and setting in _settings_of(group):
        return
    allowed = f"allowed: {', '.join((*GROUPS, *SETTINGS))}, and settings of these options"
    exists = name in (*default_options(), *setting_names())
    reason = "it changes what is computed, or how it is measured" if exists else "no such setting"
    raise ConfigError(f"space: {shown}: {reason}; {allowed}")


def _settings_of(name: str) -> set[str]:
    """Names of the settings of all options of a group; empty if the group may not be tried."""
    group = find_group(name) if name in GROUPS else None
    options = group.options if group else ()
    return {setting.name for option in options for setting in option.settings}
