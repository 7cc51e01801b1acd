"""Find, report and leave out foreign settings of a job.

A setting is foreign to a job if the job's option lacks the setting. For example, loader=raw lacks
`loader.num_threads`. In a sweep over several options, a setting applies only to the jobs with an
option that has the setting. A foreign setting comes from an override (`name=value` on the command
line), or from the job's experiment. An experiment is a yaml file of experiments/ with the options
and settings of a study, which `experiment=<name>` chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf

from fastloop.config.catalogue import (
    default_options,
    experiment_files,
    groups,
    names_in_option,
    options_of,
)
from fastloop.config.hydra_api import hydra_compose
from fastloop.config.messages import ConfigError, unknown_setting
from fastloop.config.suggestions import same_setting
from fastloop.core.passwords import without_passwords

NO_KEY = re.compile(r"Could not override '([^']+)'|Could not delete from config\. '([^']+)' does")
"""Hydra's messages for a setting that does not exist; a group is the dotted name of the setting."""
ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")
"""A special character of a value in a sweep, after the backslash that Hydra adds."""


class ForeignSetting(ConfigError):  # noqa: N818 - a verdict on one job, as Unsupported is
    """A setting that the option of this job lacks; an option of another job may have the setting.

    name: dotted name of the setting.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def find_foreign_setting(message: str) -> str:
    """The dotted name of the foreign setting that Hydra's message reports; empty if there is none.

    Settings at the top level, and Hydra's own settings, belong to no option, so they don't count.
    """
    match = NO_KEY.search(message)
    name = (match[1] or match[2]) if match else ""
    is_of_option = "." in name and not name.startswith("hydra")
    return name if is_of_option else ""


def override_text(override: str) -> str:
    """The override for a message, without the backslashes of a sweep and without passwords.

    >>> override_text("tracker.uri=http\\\\://me\\\\:secret@host/")
    'tracker.uri=http://host/'
    """
    return without_passwords(ESCAPED.sub(r"\1", override))


def explain_foreign_setting(config_name: str, overrides: Sequence[str], setting: str) -> str:
    """The message for a foreign setting of a job.

    The message lists the options that have the setting. If no option has the setting, the message
    lists the settings that the job's option has.

    config_name: name of the main yaml of the configuration. overrides: all overrides of the job.
    setting: dotted name of the setting.
    """
    override = next((each for each in overrides if name_in(each) == setting), setting)
    override = override_text(override)
    group, _, last = setting.rpartition("@")[2].partition(".")
    # `_target_` names the user's own code, and conf/ does not list the arguments of that code.
    if any(each.startswith(f"{group}._target_=") for each in overrides):
        return unknown_setting(override)
    having = _describe_options_with(group, last)
    if not having:
        allowed = _describe_allowed_settings_of_job(config_name, overrides, setting)
        return unknown_setting(override, allowed)
    option = _find_option_in(overrides, group)
    same = same_setting(last, _settings_of_option(group, option))
    hint = f"did you mean {same}? " if same else ""
    _, equals, value = override.partition("=")
    shown = f"{group}.{last}{equals}{value}"
    return f"{shown}: {group}={option} has no such setting; {hint}allowed with {having}"


def _find_option_in(overrides: Sequence[str], group: str) -> str:
    """The option that the last override of the group chooses; without an override, the default."""
    chosen = [text.partition("=")[2] for text in overrides if text.partition("=")[0] == group]
    return chosen[-1] if chosen else default_options().get(group, "")


def _describe_allowed_settings_of_job(
    config_name: str, overrides: Sequence[str], setting: str
) -> str:
    """The result of `describe_allowed_settings` for a job; empty if the job can't be composed.

    config_name, overrides, setting: as in `explain_foreign_setting`.
    """
    # An experiment, and not an override, may choose the option. So the job is composed to find the
    # option. Errors of other overrides are reported later.
    with suppress(HydraException):
        cfg = hydra_compose(config_name, leave_out(overrides, setting))
        return describe_allowed_settings(setting, cfg.hydra.runtime.choices)
    return ""


def describe_allowed_settings(name: str, choices: Mapping[str, str]) -> str:
    """The part of a message that lists the settings allowed in place of an unknown one.

    name: dotted name of the unknown setting. choices: group -> option of the job. Empty if the
    option is not in conf/.

    >>> describe_allowed_settings("loader.nope", {"loader": "raw"})
    'loader=raw has no settings of its own; `fastloop list loader` lists the others'
    """
    path = name.rpartition(".")[0]
    group = "store@loader.store" if path == "loader.store" else path
    option = choices.get(group, "")
    if option not in _settings_by_option(path):
        return ""
    if known := _settings_of_option(path, option):
        return f"allowed with {group}={option}: {', '.join(known)}"
    listed = f"`fastloop list {group.partition('@')[0]}` lists the others"
    return f"{group}={option} has no settings of its own; {listed}"


def _describe_options_with(path: str, setting: str) -> str:
    """The options that have the setting, as in `loader=fastloop, spdl`; empty if none has it.

    path: path of the group in the configuration. setting: name of the setting in the group, such as
    `num_threads`, or `store.chunk_rows` for a setting of a loader's store.
    """
    if setting.startswith("store."):
        stores = _describe_options_with("loader.store", setting.partition(".")[2])
        return stores.replace("loader.store=", "store@loader.store=")
    having = [option for option, names in _settings_by_option(path).items() if setting in names]
    # A blank follows each comma, because messages cut off very long words.
    return f"{path}={', '.join(having)}" if having else ""


def _settings_of_option(path: str, option: str) -> list[str]:
    """Dotted names of the option's settings; empty if the option has none, or is not in conf/."""
    return [f"{path}.{name}" for name in _settings_by_option(path).get(option, [])]


def _settings_by_option(path: str) -> dict[str, list[str]]:
    """Option -> names of its settings, for all options of a group in conf/.

    A loader that reads a store has the setting `store` besides those that its yaml lists. path:
    path of the group in the configuration, such as loader or loader.store.
    """
    return {
        option.name: [
            *(setting.name for setting in option.settings),
            *(["store"] if option.reads_store else []),
        ]
        for group in groups()
        if group.path == path
        for option in group.options
    }


def without_force(overrides: Sequence[str]) -> tuple[str, ...]:
    """Remove the ++ before each setting that an option of the same group in conf/ has.

    An override that begins with ++ is forced: Hydra adds the setting even to an option that lacks
    the setting. The ++ stays if the job's option is not in conf/.

    >>> without_force(["loader=raw", "++loader.store=null", "++loader.mine=1"])
    ('loader=raw', 'loader.store=null', '++loader.mine=1')
    """
    # With ++ Hydra would add the setting, and the class of the option would refuse it. Without ++
    # Hydra reports a foreign setting.
    return tuple(
        text.removeprefix("++") if _is_forced_setting(text, overrides) else text
        for text in overrides
    )


def _is_forced_setting(override: str, overrides: Sequence[str]) -> bool:
    """True if the override begins with ++, and changes a setting that an option of conf/ has.

    False if an override chooses an option that is not in conf/.
    """
    group, _, setting = name_in(override).removeprefix("++").partition(".")
    if not override.startswith("++") or not _describe_options_with(group, setting):
        return False
    # The option may be the user's own code, which `_target_` or a yaml file names. The ++ may then
    # add an argument for that code.
    chosen = [text for text in overrides if text.startswith((f"{group}=", f"{group}._target_="))]
    known = [f"{group}={option}" for option in _settings_by_option(group)]
    return all(text in known for text in chosen)


def leave_out(overrides: Sequence[str], name: str) -> tuple[str, ...]:
    """The overrides without those of the setting with this dotted name."""
    return tuple(text for text in overrides if name_in(text) != name)


def name_in(override: str) -> str:
    """The name of the setting that the override changes, or deletes with a ~ before the name."""
    return override.partition("=")[0].lstrip("~")


def find_foreign_in_experiment(
    choices: Mapping[str, str], values: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, ConfigError]:
    """Find the settings of the job's experiment that are foreign to the job.

    choices: group -> option of the job. values: the job's configuration. overrides: all overrides
    of the job. Returns dotted name -> the error to raise if no job of the sweep has the setting.
    """
    # An experiment sets values of the options that it chooses. If the command line chooses another
    # option of the group, Hydra merges these values into that option, which may lack them.
    path = experiment_files().get(choices.get("experiment", ""))
    if path is None:
        return {}
    experiment: Any = OmegaConf.to_container(OmegaConf.load(path))
    errors: dict[str, ConfigError] = {}
    for group, settings in experiment.items():
        option = choices.get(group, "")
        is_replaced = f"{group}={option}" in overrides and option in options_of(group)
        if not isinstance(settings, dict) or not is_replaced:
            continue
        for setting in settings.keys() & (values[group].keys() - names_in_option(group, option)):
            name = f"{group}.{setting}"
            source = f"experiment={choices['experiment']} sets {name}"
            reason = f"which {group}={option} does not have; ~{name} leaves it out"
            errors[name] = ConfigError(f"{source}, {reason}")
    return errors
