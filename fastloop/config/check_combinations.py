"""Check the combinations of a command line before torch is imported, so that errors appear at once.

A wrong value of an option's setting is found later, when the job is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastloop.config.build_jobs import check_settings
from fastloop.config.catalogue import (
    REQUIREMENTS,
    find_option,
    group_names,
    names_in_option,
    option_values,
    options_of,
    setting_names,
)
from fastloop.config.combinations import BASIC
from fastloop.config.composed_job import Combination
from fastloop.config.foreign_settings import describe_allowed_settings
from fastloop.config.messages import ConfigError, unknown_setting
from fastloop.config.user_options import check_own_code
from fastloop.config.value_messages import format_value
from fastloop.core.types import BadData, Unsupported
from fastloop.data.dataset_files import own_path

STORE_GROUP = "store@loader.store"
"""The group of a loader's store, as it is written on the command line."""


def check_combinations(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError for a wrong setting, and if no job finds the files of its dataset."""
    _refuse_unknown_settings(combinations)
    for combination in combinations:
        check_settings(combination.values)
    check_own_code([combination.values for combination in combinations])
    # Another launcher of Hydra may run the jobs on other machines, which may have other files.
    if combinations[0].launcher == BASIC:
        _refuse_missing_files(combinations)


def _refuse_unknown_settings(combinations: Sequence[Combination]) -> None:
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
    path: str, node: Mapping[str, Any], known: Collection[str], choices: Mapping[str, str]
) -> None:
    """Raise ConfigError for the first name in the node that is not known."""
    for setting in node:
        # Names such as _convert_ are Hydra's.
        if setting in known or setting.startswith("_"):
            continue
        name = f"{path}.{setting}" if path else setting
        allowed = describe_allowed_settings(name, choices) if path else ""
        raise ConfigError(unknown_setting(f"{name}={format_value(node[setting])}", allowed))


def _refuse_missing_files(combinations: Sequence[Combination]) -> None:
    """Raise ConfigError if none of these jobs finds the files of its dataset.

    If only some jobs lack files, the others are measured, and the table shows the reasons.
    """
    reasons = [_missing_files(each) for each in combinations]
    if all(reasons):
        raise ConfigError("; ".join(dict.fromkeys(reasons)))


def _missing_files(combination: Combination) -> str:
    """The reason why the job's dataset can't find the user's files.

    Empty if the files are found, and if the dataset is code of the user's own.
    """
    values = combination.values["dataset"]
    name = combination.choices.get("dataset", "")
    option = find_option("dataset", name)
    if option is None or values.get("_target_") != option_values("dataset", name)["_target_"]:
        return ""
    for setting in option.settings:
        path = values.get(setting.name)
        # Some of these paths may be null; the setting's meaning then says which data is read.
        if not setting.is_own_path or (path is None and setting.explains_null):
            continue
        # A value of another type is refused when the dataset is built.
        if path is not None and not isinstance(path, str):
            continue
        try:
            own_path(path, f"dataset={name}", setting.meaning, f"dataset.{setting.name}")
        except (Unsupported, BadData) as error:
            return str(error)
    return ""
