"""Find, report and leave out foreign settings of a job.

A setting is foreign to a job if the job's option lacks it, as loader=raw lacks
`loader.num_threads`. In a sweep, such a setting applies only to the jobs with an option that has
it. Foreign settings come from the command line, or from the job's experiment: a yaml file of
experiments/ with options and settings of a study, which `experiment=<name>` chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from fastloop.config.catalogue import (
    Option,
    default_options,
    experiment_files,
    groups,
    option_values,
    options_of,
    options_with_store,
    overridable_names,
)
from fastloop.config.hydra_api import hydra_compose
from fastloop.config.messages import ConfigError, unknown_setting
from fastloop.config.suggestions import same_setting
from fastloop.core.passwords import without_passwords

NO_KEY = re.compile(r"Could not override '([^']+)'|Could not delete from config\. '([^']+)' does")
"""Hydra's messages for a setting that the chosen option lacks."""
ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
"""A character of a value with the backslash that Hydra puts before it in a sweep."""


class ForeignSetting(ConfigError):  # noqa: N818 - a verdict on one job, as Unsupported is
    """A setting that the option of this job lacks; an option of another job may have it."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def find_foreign_setting(message: str) -> str:
    """The name in Hydra's message of a setting that the job's option lacks; empty for any other
    message."""
    match = NO_KEY.search(message)
    name = (match[1] or match[2]) if match else ""
    is_of_option = "." in name and not name.startswith("hydra")
    return name if is_of_option else ""


def override_text(override: str) -> str:
    """The override for a message: as it was typed in a sweep, and without passwords.

    >>> override_text("tracker.uri=http\\\\://me\\\\:secret@host/")
    'tracker.uri=http://host/'
    """
    return without_passwords(ESCAPED.sub(r"\1", override))


def describe_foreign_setting(override: str, overrides: Sequence[str]) -> str:
    """The message for an override of a foreign setting, with the options that have the setting.

    Empty if no option has the setting, or if the job's option is code of the user's own.
    """
    name, equals, value = override.lstrip("~").partition("=")
    shown = name.rpartition("@")[2]
    group, _, setting = shown.partition(".")
    # The option is code of the user's own, and conf/ does not know its arguments.
    if any(override.startswith(f"{group}._target_=") for override in overrides):
        return ""
    chosen = [value for key, _, value in (o.partition("=") for o in overrides) if key == group]
    option = (chosen or [default_options().get(group, "")])[-1]
    having = _options_with(group, setting)
    same = same_setting(setting, _settings_of_option(group, option))
    if not having:
        return ""
    hint = f"did you mean {same}? " if same else ""
    told = f"{group}={option} has no such setting; {hint}allowed with {having}"
    return f"{shown}{equals}{value}: {told}"


def explain_setting(name: str, overrides: Sequence[str], setting: str) -> str:
    """The message for a foreign setting of a job.

    name: the name of the configuration's main yaml. overrides: all overrides of the job.
    """
    override = next((each for each in overrides if name_in(each) == setting), setting)
    override = override_text(override)
    if message := describe_foreign_setting(override, overrides):
        return message
    allowed = ""
    group = setting.partition(".")[0]
    # The arguments of the user's own code are not known here.
    if not any(each.startswith(f"{group}._target_=") for each in overrides):
        # The job is composed because an experiment, and not an override, may choose the option. If
        # another override is wrong as well, that is reported later.
        with suppress(HydraException):
            rest = [*leave_out(overrides, setting)]
            cfg = hydra_compose(name, rest, return_hydra_config=True)
            allowed = describe_settings(setting, cfg.hydra.runtime.choices)
    return unknown_setting(override, overridable_names(), allowed)


def describe_settings(name: str, choices: Mapping[str, str]) -> str:
    """The part of a message that says which settings are allowed in place of an unknown one; empty
    if conf/ does not know the option.

    choices: group -> option of the job.

    >>> describe_settings("loader.nope", {"loader": "raw"})
    'loader=raw has no settings of its own; `fastloop list loader` lists the others'
    """
    group = name.rpartition(".")[0]
    written = "store@loader.store" if group == "loader.store" else group
    option = choices.get(written, "")
    if option not in [each.name for each in _options_of_path(group)]:
        return ""
    if known := _settings_of_option(group, option):
        return f"allowed with {written}={option}: {', '.join(known)}"
    listed = f"`fastloop list {written.partition('@')[0]}` lists the others"
    return f"{written}={option} has no settings of its own; {listed}"


def _settings_of_option(group: str, option: str) -> list[str]:
    """Dotted names of the settings of that option; empty if it has none."""
    names = [
        each.name
        for of_group in _options_of_path(group)
        if of_group.name == option
        for each in of_group.settings
    ]
    if group == "loader" and option in options_with_store():
        names.append("store")
    return [f"{group}.{name}" for name in names]


def _options_of_path(path: str) -> list[Option]:
    """The options of the group with that path in the configuration, such as loader.store."""
    return [option for group in groups() if group.path == path for option in group.options]


def _options_with(group: str, setting: str) -> str:
    """The options that have the setting, as in `loader=fastloop, spdl`, or ""."""
    if setting.startswith("store."):
        stores = _options_with("loader.store", setting.partition(".")[2])
        return stores.replace("loader.store=", "store@loader.store=")
    having = [
        option.name
        for option in _options_of_path(group)
        if setting in [known.name for known in option.settings]
        or (setting == "store" and option.name in options_with_store())
    ]
    # The text has blanks, because messages cut off very long words.
    return f"{group}={', '.join(having)}" if having else ""


def without_force(overrides: Sequence[str]) -> tuple[str, ...]:
    """Remove the ++ before each setting that an option of the same group in conf/ has.

    An override is forced if it begins with ++: Hydra then adds the setting even to an option that
    lacks it. The ++ stays if the job's option is not in conf/.

    >>> without_force(["loader=raw", "++loader.store=null", "++loader.mine=1"])
    ('loader=raw', 'loader.store=null', '++loader.mine=1')
    """
    # The class of an option of conf/ would refuse a setting that Hydra has added.
    return tuple(
        text.removeprefix("++") if _is_forced_setting(text, overrides) else text
        for text in overrides
    )


def _is_forced_setting(override: str, overrides: Sequence[str]) -> bool:
    """True if the override begins with ++, and changes a setting of an option of conf/."""
    group, _, setting = name_in(override).removeprefix("++").partition(".")
    if not override.startswith("++") or not _options_with(group, setting):
        return False
    # If _target_ or a yaml of the user's names other code, ++ may be meant to add an argument for
    # that code.
    chosen = [text for text in overrides if text.startswith((f"{group}=", f"{group}._target_="))]
    known = [f"{group}={option.name}" for option in _options_of_path(group)]
    return all(text in known for text in chosen)


def leave_out(overrides: Sequence[str], name: str) -> tuple[str, ...]:
    """The overrides that do not change that setting."""
    return tuple(text for text in overrides if name_in(text) != name)


def name_in(override: str) -> str:
    """The name of the setting that the override changes or deletes."""
    return override.partition("=")[0].lstrip("~")


def find_foreign_in_experiment(
    choices: Mapping[str, str], values: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, ConfigError]:
    """Find the settings of the job's experiment that are foreign to the job.

    choices: group -> option of the job. values: the job's configuration. overrides: all overrides
    of the job. Returns name -> the error to raise if no job of the sweep has the setting.
    """
    # An experiment sets values of its own options. If the command line chooses another option of
    # the group, Hydra merges these values into the other option.
    path = experiment_files().get(choices.get("experiment", ""))
    if path is None:
        return {}
    experiment: Any = OmegaConf.to_container(OmegaConf.load(path))
    errors: dict[str, ConfigError] = {}
    for group, settings in experiment.items():
        option = choices.get(group, "")
        replaced = f"{group}={option}" in overrides and option in options_of(group)
        if not isinstance(settings, dict) or not replaced:
            continue
        known = option_values(group, option).keys()
        known |= {"store"} if group == "loader" and option in options_with_store() else set()
        for setting in settings.keys() & values[group].keys() - known:
            named = f"experiment={choices['experiment']} sets {group}.{setting}"
            remedy = f"~{group}.{setting} leaves it out"
            text = f"{named}, which {group}={option} does not have; {remedy}"
            errors[f"{group}.{setting}"] = ConfigError(text)
    return errors
