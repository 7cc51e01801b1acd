"""Compose the values of a single job's configuration quickly, from cached configurations.

Hydra takes 0.1 s for each configuration that it composes. `compose_values` therefore lets Hydra
compose each option only once, and combines the results itself if that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fastloop.config.catalogue import default_options, options_of, settings
from fastloop.config.command_line import (
    expand_homes,
    parse_overrides,
    read_command_line,
    read_spellings,
)
from fastloop.config.hydra_api import (
    CONFIG_NAME,
    VALUE_IN_OPTION,
    change_values,
    compose_api,
    hydra_compose,
)

CHOICE = re.compile(r"([\w@.]+)=(\w+)")
"""An override that chooses an option by its name."""
CHANGES_WITH = {"decoder": "dataset", "store@loader.store": "loader"}
"""Group that the options of another group choose from -> the other group. Their overrides are
composed together."""


def compose_values(*overrides: str) -> dict[str, Any]:
    """Compose the configuration of a single job, resolved and without Hydra's part.

    Raises Hydra's exceptions for an invalid name.
    """
    cfg = _compose_unresolved(read_spellings(overrides))
    return expand_homes(OmegaConf.to_container(cfg, resolve=True))


@cache
def _compose_unresolved(overrides: tuple[str, ...]) -> DictConfig:
    """Compose the configuration of a job without resolving interpolations."""
    # Composing is cached. Resolving is not, because it is fast and depends on the environment. Jobs
    # that differ only in values are composed once; the values are changed in a copy, as Hydra does.
    line = read_command_line(overrides)
    names = {each.name for each in settings()}
    # In `placement`, and in groups with a `_target_` among the overrides, the values decide which
    # defaults are left out (see composed_defaults.py). So these values are composed together with
    # the choices.
    targets = [text.partition("._target_=")[0] for text in line.overrides if "._target_=" in text]
    fitted = tuple(f"{group.lstrip('+')}." for group in (*targets, "placement"))
    values = [
        text
        for text in line.overrides
        if text.partition("=")[0] in names
        or (VALUE_IN_OPTION.match(text) and not text.startswith(fitted))
    ]
    if values:
        cfg = deepcopy(_compose_unresolved(tuple(text for text in overrides if text not in values)))
        # If a value can't be changed, Hydra composes the whole job below, and reports the error.
        with suppress(OmegaConfBaseException), compose_api(line):
            changes = parse_overrides(values)
            if not any(change.is_sweep_override() for change in changes):
                return change_values(cfg, changes)
    elif (combined := _combine(overrides)) is not None:
        return combined
    with compose_api(line):
        return hydra_compose(line.config_name or CONFIG_NAME, list(line.overrides))


def _combine(overrides: tuple[str, ...]) -> DictConfig | None:
    """Combine the cached configurations of single choices; None if only Hydra can do so."""
    # Many jobs are combinations of few options, so each option is composed only once.
    choices = _plain_choices(overrides)
    if choices is None or len(choices) < 2:
        return None
    chosen = {group: _compose_unresolved(of_group) for group, of_group in choices.items()}
    parts = {group: _parts_of(of_group) | {group} for group, of_group in choices.items()}
    return _combine_choices(_compose_unresolved(()), chosen, parts)


@cache
def _parts_of(overrides: tuple[str, ...]) -> frozenset[str]:
    """Names at the top level of the default configuration that these overrides change."""
    return _parts_that_differ(_compose_unresolved(()), _compose_unresolved(overrides))


def _plain_choices(overrides: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Group -> the overrides that choose its option, and those of groups in CHANGES_WITH.

    None unless every override chooses an option of conf/, each from a different group.

    >>> _plain_choices(["loader=raw", "dataset=photos", "decoder=pil"])
    {'loader': ('loader=raw',), 'dataset': ('dataset=photos', 'decoder=pil')}
    """
    choices: dict[str, tuple[str, ...]] = {}
    names = set[str]()
    for text in overrides:
        match = CHOICE.fullmatch(text)
        name, option = match.groups() if match else ("", "")
        is_known = name in default_options() or name in CHANGES_WITH
        if name in names or not is_known or option not in options_of(name.partition("@")[0]):
            return None
        names.add(name)
        group = CHANGES_WITH.get(name, name)
        choices[group] = (*choices.get(group, ()), text)
    return choices


def _combine_choices(
    base: DictConfig, chosen: Mapping[str, DictConfig], parts: Mapping[str, frozenset[str]]
) -> DictConfig | None:
    """The configuration with all choices; None if two groups' choices change the same part.

    base: the configuration without choices.
    chosen: group -> the configuration with only this group's choices.
    parts: group -> the parts, names at the top level, that these choices change.
    """
    if sum(map(len, parts.values())) > len(set[str]().union(*parts.values())):
        return None
    # A choice that adds or removes a part changes the order of the parts.
    reordered = [group for group, cfg in chosen.items() if [*cfg] != [*base]]
    if len(reordered) > 1:
        return None
    combined = deepcopy(chosen[reordered[0]] if reordered else base)
    for group in chosen.keys() - {*reordered}:
        for part in parts[group]:
            combined[part] = chosen[group]._get_node(part)
    return combined


def _parts_that_differ(base: DictConfig, changed: DictConfig) -> frozenset[str]:
    """Names at the top level with different contents, before interpolations are resolved."""
    before, after = (OmegaConf.to_container(cfg, resolve=False) for cfg in (base, changed))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # The text distinguishes 1 from True, and dicts in another order.
    return frozenset(
        str(name)
        for name in before.keys() | after.keys()
        if repr(before.get(name, ...)) != repr(after.get(name, ...))
    )
