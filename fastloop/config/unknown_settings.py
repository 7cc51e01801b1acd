"""Refuse settings of a composed configuration that do not exist, before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastloop.config.catalogue import (
    REQUIREMENTS,
    group_names,
    names_in_option,
    option_values,
    options_of,
    overridable_names,
    setting_names,
)
from fastloop.config.composed_job import Combination
from fastloop.config.foreign_settings import describe_allowed_settings
from fastloop.config.messages import ConfigError, format_value, unknown_setting

STORE_GROUP = "store@loader.store"
"""The group of a loader's store, as it is written on the command line."""


def refuse_unknown_settings(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError for a setting that neither the top level nor an option of the job has.

    Hydra has refused such settings already, unless they were written with a plus.
    """
    groups = group_names()
    top = {*groups, *setting_names()}
    seen = set[tuple[Any, ...]]()
    for combination in combinations:
        values, choices = combination.values, combination.choices
        _refuse("", values, top, choices)
        for group in (*groups, STORE_GROUP):
            node = values.get(group) if group != STORE_GROUP else values["loader"].get("store")
            option = choices.get(group, "")
            # Many jobs of a sweep have the same option, with settings of the same names. Such an
            # option is checked only once.
            if isinstance(node, dict) and (key := (group, option, *node)) not in seen:
                seen.add(key)
                _refuse_of_option(group, option, node, choices)


def _refuse_of_option(
    group: str, option: str, node: Mapping[str, Any], choices: Mapping[str, str]
) -> None:
    """Raise ConfigError for a setting in the node that an option of conf/ does not have."""
    name, _, path = group.partition("@")
    # An option of the user's own files has settings that conf/ does not know.
    expected = option_values(name, option) if option in options_of(name) else {}
    target = expected.get("_target_")
    if target is None or node.get("_target_") != target:
        return
    known = {*names_in_option(name, option), REQUIREMENTS}
    _refuse(path or name, node, known, choices)


def _refuse(
    path: str, node: Mapping[str, Any], known: Iterable[str], choices: Mapping[str, str]
) -> None:
    """Raise ConfigError for the first name in the node that is not known."""
    for setting in node.keys() - {*known}:
        # Names such as _convert_ are Hydra's.
        if setting.startswith("_"):
            continue
        name = f"{path}.{setting}" if path else setting
        allowed = describe_allowed_settings(name, choices) if path else ""
        text = f"{name}={format_value(node[setting])}"
        raise ConfigError(unknown_setting(text, overridable_names(), allowed))
