"""Remove or replace those defaults of a composed configuration that its other parts rule out.

For example, `dataset._target_=mine.Squares` rules out the settings of the default dataset. Hydra
merges overrides and the user's yaml files into the yaml of the default option, and does not tell
which of these sources has set a value. Most of this file finds that out.
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

from fastloop.config.catalogue import default_options, option_values, options_of, setting_names
from fastloop.config.user_options import OPTION_METHODS, pass_to_own_code
from fastloop.core.user_code import parameters_of
from fastloop.core.user_source import read_parameters

DIRECT = "fastloop.options.placement.direct.DirectPlacement"
PAD = "fastloop.options.collate.pad.PadCollate"
FITS_PADDED = "recursive"
"""The placement that takes the place of the default for padded batches."""
_FOUND: WeakKeyDictionary[Any, dict[tuple[str, ...], frozenset[str]]] = WeakKeyDictionary()
"""Cache: Hydra's global object -> the names of settings and groups that the functions below have
found. Finding them takes about as long as composing a job. The cache ends with the global object,
because the yaml files may have changed when Hydra makes the next one."""


def remove_unfit_defaults(cfg: DictConfig, name: str, overrides: Sequence[str]) -> None:
    """Remove or replace the unfit defaults of a configuration that has just been composed.

    cfg: the configuration, with Hydra's part. name: the name of its main yaml. overrides: those
    from which it was composed. To be called in the context of `compose_api`.
    """
    for group in OPTION_METHODS:
        _leave_out_defaults(cfg, name, overrides, group)
    _fit_placement(cfg, name, overrides)


def copy_removals(values: dict[str, Any], fitted: dict[str, Any]) -> dict[str, Any]:
    """Apply the changes of `remove_unfit_defaults` to values that Hydra has composed by itself.

    fitted: the values of the same job after `remove_unfit_defaults`, which show the changes.
    """
    nodes = {
        group: {key: each for key, each in values[group].items() if key in fitted[group]}
        for group in OPTION_METHODS
    }
    return values | nodes | {"placement": fitted["placement"]}


def _leave_out_defaults(cfg: DictConfig, name: str, overrides: Sequence[str], group: str) -> None:
    """Delete the settings of the group's option if another `_target_` has replaced the option's.

    Otherwise these settings would replace the defaults of the target's parameters of the same name.
    A setting is kept

    - if an override has set it, or if its value is not the option's;
    - if another yaml file has set it, and the option is the default, which nobody has chosen;
    - if the target has a parameter of this name, and an override or a file has chosen the option.
    """
    node, choice = cfg.get(group), cfg.hydra.runtime.choices.get(group)
    option = choice if choice in options_of(group) else default_options()[group]
    values, defaults = _raw_values(node), option_values(group, option)
    if not isinstance(node, DictConfig) or values.get("_target_") == defaults["_target_"]:
        return
    own = [override for override in overrides if _group_in(override) == group]
    given = {override.lstrip("+").partition("=")[0] for override in own}
    unchanged = [
        key
        for key, value in defaults.items()
        if key != "_target_" and f"{group}.{key}" not in given and values.get(key, ...) == value
    ]
    if not unchanged:
        return
    if _is_chosen(name, overrides, group):
        kept = _parameters_among(unchanged, values.get("_target_"))
    else:
        others = [override for override in overrides if override not in own]
        kept = _names_in_files(name, others, group)
    with open_dict(node):
        for key in unchanged:
            if key not in kept:
                del node[key]


def _names_in_files(name: str, others: Sequence[str], group: str) -> frozenset[str]:
    """Names of the group's settings in all yaml files but that of the group's default option.

    others: the overrides, without those of the group.
    """
    # `~group` deletes the default option: only settings from other files remain in the group.
    of_files = [*pass_to_own_code(_without_settings(others)), f"~{group}"]
    found = _FOUND.setdefault(GlobalHydra.instance().hydra, {})
    key = ("names", name, *of_files)
    if key not in found:
        found[key] = frozenset(hydra.compose(name, of_files).get(group) or ())
    return found[key]


def _without_settings(overrides: Sequence[str]) -> list[str]:
    """The overrides without those of settings at the top level, which change no group. Jobs of a
    sweep often differ only in such settings, and share a key of `_FOUND` without them."""
    names = setting_names()
    return [text for text in overrides if text.lstrip("+").partition("=")[0] not in names]


def _parameters_among(names: Sequence[str], target: Any) -> Collection[str]:
    """The names that the target has as parameters, with its other parameters.

    If the target accepts any argument, or its parameters are not known, all of the given names.
    """
    path = str(target)
    # If the target's module is not imported yet, only its text is read. A target that does not
    # exist is reported later.
    read = parameters_of if path.partition(".")[0] in sys.modules else read_parameters
    with suppress(ValueError):
        parameters = read(path)
        if parameters is not None and not parameters.takes_any:
            return parameters.names
    return names


def _fit_placement(cfg: DictConfig, name: str, overrides: Sequence[str]) -> None:
    """Put placement=recursive in place of the default, for collate=pad.

    Padded batches contain pairs (padded, lengths). placement=direct moves only top-level fields,
    and does not look into these pairs.
    """
    targets = [_raw_values(cfg.get(group)).get("_target_") for group in ("collate", "placement")]
    is_set = any(_group_in(override) == "placement" for override in overrides)
    if targets != [PAD, DIRECT] or is_set or _is_chosen(name, overrides, "placement"):
        return
    with read_write(cfg), open_dict(cfg), read_write(cfg.hydra), open_dict(cfg.hydra):
        cfg.placement = {**option_values("placement", FITS_PADDED)}
        cfg.hydra.runtime.choices.placement = FITS_PADDED


def _raw_values(node: Any) -> dict[Any, Any]:
    """The values of a part of the configuration, with ${...} unresolved; empty if it is no dict."""
    # Values are resolved once, after the job is composed; an error then names the setting.
    values = OmegaConf.to_container(node) if isinstance(node, DictConfig) else None
    return values if isinstance(values, dict) else {}


def _is_chosen(name: str, overrides: Sequence[str], group: str) -> bool:
    """True if an override chooses an option from the group, or if a yaml file such as an experiment
    does so by `override` in its defaults list."""
    choosing = [*pass_to_own_code(_without_settings(overrides))]
    found = _FOUND.setdefault(GlobalHydra.instance().hydra, {})
    key = ("choices", name, *choosing)
    if key not in found:
        # Only this function of Hydra's tells which groups were chosen, and not left at the default.
        loader: Any = GlobalHydra.instance().config_loader()
        defaults = loader.compute_defaults_list(name, choosing, RunMode.RUN)
        found[key] = frozenset(defaults.overrides.override_choices)
    return group in found[key]


def _group_in(override: str) -> str:
    """The group that the override changes, as in `group=`, `+group.setting=` and `group@part=`."""
    path = override.lstrip("+~").partition("=")[0]
    return path.partition(".")[0].partition("@")[0]
