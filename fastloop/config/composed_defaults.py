"""Replace the defaults of a composed configuration that its other parts rule out.

Hydra merges overrides and the user's yaml files into the yaml of the default option, and does not
tell which of them has set a value.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from fastloop.config.catalogue import default_of, option_values, options_of, settings
from fastloop.config.user_options import OPTION_METHODS, pass_to_own_code
from fastloop.core.user_code import parameters_of
from fastloop.core.user_source import read_parameters

DIRECT = "fastloop.options.placement.direct.DirectPlacement"
PAD = "fastloop.options.collate.pad.PadCollate"
FITS_PADDED = "recursive"
"""The placement that takes the place of the default for padded batches."""
_FOUND: WeakKeyDictionary[Any, dict[tuple[str, ...], frozenset[str]]] = WeakKeyDictionary()
"""Hydra's global object -> the names of settings and groups that the functions below have found
while it was the global one. Finding them takes about as long as composing a job. The files may
change until the next command, for which Hydra has another global object."""


def fit_composed(cfg: DictConfig, name: str, overrides: Sequence[str]) -> None:
    """Change a configuration of `compose_api`, with Hydra's part, that has just been composed.

    name: the name of the configuration's main yaml.
    """
    for group in OPTION_METHODS:
        _leave_out_defaults(cfg, name, overrides, group)
    _fit_placement(cfg, name, overrides)


def fit_alike(values: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Any]:
    """The values of a configuration that Hydra has composed by itself, changed as those of
    `fitted` were by `fit_composed`."""
    nodes = {
        group: {key: each for key, each in values[group].items() if key in fitted[group]}
        for group in OPTION_METHODS
    }
    return values | nodes | {"placement": fitted["placement"]}


def _leave_out_defaults(cfg: DictConfig, name: str, overrides: Sequence[str], group: str) -> None:
    """Delete the settings of the default option, if another `_target_` has replaced it.

    They would be passed to parameters of the same name in place of the user's own defaults.
    Settings that an override or a file has set stay. If an override or a file has chosen the
    option, only settings of which the target has no parameter are deleted.
    """
    node, choice = cfg.get(group), cfg.hydra.runtime.choices.get(group)
    option = choice if choice in options_of(group) else default_of(group)
    values, defaults = _raw_values(node), option_values(group, option)
    if not isinstance(node, DictConfig) or values.get("_target_") == defaults["_target_"]:
        return
    own = [override for override in overrides if _group_in(override) == group]
    given = {override.lstrip("+").partition("=")[0] for override in own}
    left = [
        key
        for key, value in defaults.items()
        if key != "_target_" and f"{group}.{key}" not in given and values.get(key, ...) == value
    ]
    if not left:
        return
    if _is_chosen(name, overrides, group):
        stay = _names_to_keep(values.get("_target_"), left)
    else:
        others = [override for override in overrides if override not in own]
        stay = _names_in_files(name, others, group)
    with open_dict(node):
        for key in left:
            if key not in stay:
                del node[key]


def _names_in_files(name: str, others: Sequence[str], group: str) -> frozenset[str]:
    """Names of the settings that the files set in the group, besides those of its default option.

    others: the overrides, without those of the group.
    """
    # Without the group's default, the node has what the files set, and nothing else.
    of_files = [*pass_to_own_code(_without_settings(others)), f"~{group}"]
    found = _FOUND.setdefault(GlobalHydra.instance().hydra, {})
    key = ("names", name, *of_files)
    if key not in found:
        found[key] = frozenset(hydra.compose(name, of_files).get(group) or ())
    return found[key]


def _without_settings(overrides: Sequence[str]) -> list[str]:
    """The overrides without those of settings at the top level, which are in no group: jobs of a
    sweep often differ in these alone."""
    names = {setting.name for setting in settings()}
    return [text for text in overrides if text.lstrip("+").partition("=")[0] not in names]


def _names_to_keep(target: Any, names: Sequence[str]) -> Collection[str]:
    """Names of the target's parameters; all of the given names if it takes any argument, or does
    not tell which."""
    path = str(target)
    # The text of a module is read before it is imported. A wrong name in it is told later.
    read = parameters_of if path.partition(".")[0] in sys.modules else read_parameters
    with suppress(ValueError):
        parameters = read(path)
        if parameters is not None and not parameters.takes_any:
            return parameters.names
    return names


def _fit_placement(cfg: DictConfig, name: str, overrides: Sequence[str]) -> None:
    """Put placement=recursive in place of the default, for collate=pad.

    Padded batches have (padded, lengths) in them, which placement=direct does not open.
    """
    targets = [_raw_values(cfg.get(group)).get("_target_") for group in ("collate", "placement")]
    is_set = any(_group_in(override) == "placement" for override in overrides)
    if targets != [PAD, DIRECT] or is_set or _is_chosen(name, overrides, "placement"):
        return
    with read_write(cfg), open_dict(cfg), read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.placement = {**option_values("placement", FITS_PADDED)}
        cfg.hydra.runtime.choices.placement = FITS_PADDED


def _raw_values(node: Any) -> dict[Any, Any]:
    """The values of a part of the configuration, ${...} as it is written; empty for no dict."""
    # The job is built later, which resolves each value once and names the setting of a failing one.
    values = OmegaConf.to_container(node) if isinstance(node, DictConfig) else None
    return values if isinstance(values, dict) else {}


def _is_chosen(name: str, overrides: Sequence[str], group: str) -> bool:
    """True if an override or an experiment chooses an option from the group."""
    choosing = [*pass_to_own_code(_without_settings(overrides))]
    found = _FOUND.setdefault(GlobalHydra.instance().hydra, {})
    key = ("choices", name, *choosing)
    if key not in found:
        loader: Any = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list(name, choosing, RunMode.RUN)
        found[key] = frozenset(defaults.overrides.override_choices)
    return group in found[key]


def _group_in(override: str) -> str:
    """The group that the override changes, as in `group=`, `+group.setting=` and `group@part=`."""
    path = override.lstrip("+~").partition("=")[0]
    return path.partition(".")[0].partition("@")[0]
