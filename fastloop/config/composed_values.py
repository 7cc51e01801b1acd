"""Compose the values of a single job's configuration quickly, from cached configurations.

Hydra takes 0.1 s for each configuration that it composes. `compose_values` composes a configuration
in the first of these ways that applies:

1. Overrides that only change values, such as `epochs=3` in `loader=raw epochs=3`: the values are
   changed in a copy of the configuration that the other overrides make, here `loader=raw`.
2. Overrides that each choose an option, such as `loader=raw dataset=photos`: the parts that
   `loader=raw` alone changes, and the parts that `dataset=photos` alone changes, are put into a
   copy of the default configuration.
3. All other overrides: Hydra composes the configuration.

A *part* is a name at the top level of a configuration, such as `loader`, with its content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fastloop.config.catalogue import default_options, options_of, setting_names
from fastloop.config.command_line import (
    CommandLine,
    expand_homes,
    parse_overrides,
    read_command_line,
    read_spellings,
)
from fastloop.config.hydra_api import (
    VALUE_IN_OPTION,
    change_values,
    compose_api,
    hydra_compose,
)

CHOICE = re.compile(r"([\w@.]+)=(\w+)")
"""An override that chooses an option by its name."""
OUTER_GROUPS = {"decoder": "dataset", "store@loader.store": "loader"}
"""Group with options that lie inside of another group's option -> the other group. For example,
`decoder=pil` sets `dataset.decoder`, and so is composed together with `dataset=photos`."""


@dataclass(frozen=True, kw_only=True)
class GroupChoice:
    """The default configuration with another option of one group."""

    cfg: DictConfig
    parts: frozenset[str]
    """The names of the group and of all parts that differ from the default configuration."""
    is_reordered: bool
    """True if the names of the parts, or their order, differ from the default configuration."""


def compose_values(*overrides: str) -> dict[str, Any]:
    """Compose the values of a single job's configuration, without Hydra's own settings.

    Interpolations such as ${oc.env:HOME} are resolved.

    Raises UsageError for an invalid flag, and exceptions of Hydra or OmegaConf for an invalid name
    or value.
    """
    # Composing is cached. Resolving is not, because it is fast and depends on the environment.
    cfg = _compose_unresolved(read_spellings(overrides))
    return expand_homes(OmegaConf.to_container(cfg, resolve=True))


@cache
def _compose_unresolved(overrides: tuple[str, ...]) -> DictConfig:
    """Compose the configuration of a job without resolving interpolations.

    The result is cached, so callers must not change it.
    """
    line = read_command_line(overrides)
    values = _find_values(line.overrides)
    if values:
        others = tuple(text for text in overrides if text not in values)
        cfg = _change_copy(_compose_unresolved(others), line, values)
    else:
        cfg = _combine_choices(overrides)
    return _compose_by_hydra(line) if cfg is None else cfg


def _compose_by_hydra(line: CommandLine) -> DictConfig:
    """Let Hydra compose the configuration of the command line, without Hydra's own part."""
    with compose_api(line) as name:
        cfg = hydra_compose(name, line.overrides)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg


def _find_values(overrides: Sequence[str]) -> list[str]:
    """The overrides that change a value without an effect on the rest of the configuration.

    >>> _find_values(["loader=raw", "epochs=3", "loader.pad=1", "placement.pad=1"])
    ['epochs=3', 'loader.pad=1']
    """
    # In `placement`, and in groups with a `_target_` among the overrides, values decide which
    # defaults are left out (see composed_defaults.py). So these values are composed together with
    # the choices.
    own = [text.partition("._target_=")[0] for text in overrides if "._target_=" in text]
    deciding = tuple(f"{group.lstrip('+')}." for group in (*own, "placement"))
    return [
        text
        for text in overrides
        if text.partition("=")[0] in setting_names()
        or (VALUE_IN_OPTION.match(text) and not text.startswith(deciding))
    ]


def _change_copy(cfg: DictConfig, line: CommandLine, values: Sequence[str]) -> DictConfig | None:
    """A copy of the configuration with changed values, as Hydra changes them; None if that fails.

    values: overrides of the command line. If a value can't be changed, or is one of several, only
    Hydra reports the error with its own message.
    """
    try:
        with compose_api(line):
            changes = parse_overrides(values)
            if any(change.is_sweep_override() for change in changes):
                return None
            changed = deepcopy(cfg)
            change_values(changed, changes)
            return changed
    except OmegaConfBaseException:
        return None


def _combine_choices(overrides: Sequence[str]) -> DictConfig | None:
    """Combine the cached configurations of single choices; None if only Hydra can do so.

    Many jobs are combinations of few options, so Hydra composes each option only once.
    """
    by_group = _group_choices(overrides)
    if by_group is None or len(by_group) < 2:
        return None
    choices = [_compose_choice(group, texts) for group, texts in by_group.items()]
    # If two choices change the same part, or both determine the order of the parts, then neither
    # configuration shows the result.
    parts = [part for choice in choices for part in choice.parts]
    reordered = [choice.cfg for choice in choices if choice.is_reordered]
    if len(parts) > len({*parts}) or len(reordered) > 1:
        return None
    combined = deepcopy(reordered[0] if reordered else _compose_unresolved(()))
    for choice in choices:
        if not choice.is_reordered:
            for part in choice.parts:
                # choice.cfg[part] would resolve a part that is an interpolation.
                combined[part] = choice.cfg._get_node(part)
    return combined


def _group_choices(overrides: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Group -> the overrides that choose its option and the options inside of that option.

    None unless every override chooses an option of conf/, each from a different group.

    >>> _group_choices(["loader=raw", "dataset=photos", "decoder=pil"])
    {'loader': ('loader=raw',), 'dataset': ('dataset=photos', 'decoder=pil')}
    """
    known = {*default_options(), *OUTER_GROUPS}
    seen = set[str]()
    by_group: dict[str, tuple[str, ...]] = {}
    for text in overrides:
        match = CHOICE.fullmatch(text)
        if match is None:
            return None
        group, option = match.groups()
        if group in seen or group not in known or option not in options_of(group.partition("@")[0]):
            return None
        seen.add(group)
        outer = OUTER_GROUPS.get(group, group)
        by_group[outer] = (*by_group.get(outer, ()), text)
    return by_group


@cache
def _compose_choice(group: str, overrides: tuple[str, ...]) -> GroupChoice:
    """Compose the default configuration with these overrides, which choose the group's option."""
    default, cfg = _compose_unresolved(()), _compose_unresolved(overrides)
    return GroupChoice(
        cfg=cfg,
        parts=_find_different_parts(default, cfg) | {group},
        is_reordered=[*cfg] != [*default],
    )


def _find_different_parts(one: DictConfig, other: DictConfig) -> frozenset[str]:
    """Names of the parts with different contents, before interpolations are resolved."""
    before, after = (OmegaConf.to_container(cfg, resolve=False) for cfg in (one, other))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # repr() distinguishes 1 from True, and dicts with different orders. A comparison does not.
    return frozenset(
        str(name)
        for name in before.keys() | after.keys()
        if repr(before.get(name, ...)) != repr(after.get(name, ...))
    )
