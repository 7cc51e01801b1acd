"""Messages for settings that an option of conf/ lacks and another one of its group has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from fastloop.config.catalogue import default_options, experiment_files, groups, options_of
from fastloop.config.messages import ConfigError
from fastloop.config.yaml_files import option_values

NO_KEY = re.compile(r"Could not override '(\w+)\.(\w+)'")
"""Hydra's message for a setting that the chosen option lacks."""


def describe_foreign_setting(message: str, overrides: Sequence[str]) -> str:
    """The message for a setting which the job's option lacks and others have; empty if Hydra's
    message tells of anything else."""
    match = NO_KEY.search(message)
    if not match or any(override.startswith(f"{match[1]}._target_=") for override in overrides):
        return ""
    group, setting = match.groups()
    having = [
        option.name
        for each in groups()
        if each.path == group
        for option in each.options
        if setting in [known.name for known in option.settings]
    ]
    if not having:
        return ""
    chosen = [value for name, _, value in (o.partition("=") for o in overrides) if name == group]
    option = (chosen or [default_options().get(group, "")])[-1]
    return (
        f"{group}.{setting}: {group}={option} has no such setting; allowed with {group}="
        f"{','.join(having)}"
    )


def check_experiment_settings(
    choices: Mapping[str, str], values: Mapping[str, Any], overrides: Sequence[str]
) -> None:
    """Raise ConfigError where the experiment sets what another option than its own lacks."""
    path = experiment_files().get(choices.get("experiment", ""))
    if path is None:
        return
    experiment: Any = OmegaConf.to_container(OmegaConf.load(path))
    for group, settings in experiment.items():
        option = choices.get(group, "")
        replaced = f"{group}={option}" in overrides and option in options_of(group)
        if not isinstance(settings, dict) or not replaced:
            continue
        for setting in settings.keys() & values[group].keys() - option_values(group, option).keys():
            named = f"experiment={choices['experiment']} sets {group}.{setting}"
            remedy = f"~{group}.{setting} leaves it out"
            raise ConfigError(f"{named}, which {group}={option} does not have; {remedy}")
