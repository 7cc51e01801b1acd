"""Compose the values of a single job's configuration quickly, from cached configurations.

Hydra takes 0.1 s for each configuration that it composes. So `compose_values` lets Hydra compose
each option only once, and combines the results itself if that is possible. A choice is an override
that chooses an option of a group, such as loader=raw.
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
"""A choice: the group, and the name of the option."""
CHANGES_WITH = {"decoder": "dataset", "store@loader.store": "loader"}
"""Group -> the other group, with options that choose from the first one. Datasets choose decoders,
and loaders choose stores. Overrides of both groups are composed together."""


def compose_values(*overrides: str) -> dict[str, Any]:
    """Compose the values of a single job's configuration, without Hydra's own settings.

    Interpolations such as ${oc.env:HOME} are resolved.

    Raises Hydra's exceptions for an invalid name.
    """
    cfg = _compose_unresolved(read_spellings(overrides))
    return expand_homes(OmegaConf.to_container(cfg, resolve=True))


@cache
def _compose_unresolved(overrides: tuple[str, ...]) -> DictConfig:
    """Compose the configuration of a job without resolving interpolations."""
    # Composing is cached. Resolving is not cached, because it is fast and depends on the
    # environment. Jobs that differ only in values are composed once. The values are then changed in
    # a copy, as Hydra does.
    line = read_command_line(overrides)
    names = {each.name for each in settings()}
    # Some values decide which defaults are left out, see composed_defaults.py: those of
    # `placement`, and of groups with a `_target_` among the overrides. These values are composed
    # together with the choices.
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
    """Combine the cached configurations of single choices; None if only Hydra can combine them."""
    # Many jobs are combinations of a few options, so each option is composed only once.
    choices = _plain_choices(overrides)
    if choices is None or len(choices) < 2:
        return None
    chosen = {group: _compose_unresolved(of_group) for group, of_group in choices.items()}
    parts = {group: _parts_of(of_group) | {group} for group, of_group in choices.items()}
    return _combine_choices(_compose_unresolved(()), chosen, parts)


@cache
def _parts_of(overrides: tuple[str, ...]) -> frozenset[str]:
    """The parts, names at the top level of the configuration, that these overrides change."""
    return _parts_that_differ(_compose_unresolved(()), _compose_unresolved(overrides))


def _plain_choices(overrides: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """Group -> its choice, together with the choice from a group that changes with it.

    None if an override is not a choice of an option of conf/, or if two overrides choose from one
    group.

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
    """The configuration with all choices; None if two groups' choices exclude each other.

    That is so if both change the same part, or if both change the order of the parts.

    base: the configuration without choices.
    chosen: group -> the configuration with only this group's choices.
    parts: group -> the parts that these choices change.
    """
    if sum(map(len, parts.values())) > len(set[str]().union(*parts.values())):
        return None
    # A choice that adds or removes a part changes the order of the parts. The result begins as the
    # configuration of this choice, so there can be only one of them.
    reordered = [group for group, cfg in chosen.items() if [*cfg] != [*base]]
    if len(reordered) > 1:
        return None
    combined = deepcopy(chosen[reordered[0]] if reordered else base)
    for group in chosen.keys() - {*reordered}:
        for part in parts[group]:
            combined[part] = chosen[group]._get_node(part)
    return combined


def _parts_that_differ(base: DictConfig, changed: DictConfig) -> frozenset[str]:
    """The parts with different contents, before interpolations are resolved."""
    before, after = (OmegaConf.to_container(cfg, resolve=False) for cfg in (base, changed))
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    # repr() distinguishes 1 from True, and dicts with different orders. A comparison does not.
    return frozenset(
        str(name)
        for name in before.keys() | after.keys()
        if repr(before.get(name, ...)) != repr(after.get(name, ...))
    )
