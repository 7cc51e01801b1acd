"""Use the user's own classes and functions as options: `<group>._target_=module.name`.

`wrap_target` puts them into an option of fastloop's that calls them; `check_own_code` finds wrong
names and arguments early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastloop.config.catalogue import default_of, option_values, without_requirements
from fastloop.config.messages import ConfigError, format_value
from fastloop.core.similar_names import closest_name, suggest
from fastloop.core.user_code import (
    OFFERED_TO_MODEL,
    Parameters,
    check_callable,
    check_usable,
    locate,
    parameters_of,
)
from fastloop.core.user_source import read_parameters

if TYPE_CHECKING:
    from fastloop.trial.job import Job

OPTION_METHODS = {
    "dataset": ("fetch", "open"),
    "loader": ("open",),
    "model": ("check", "build"),
    "collate": ("collate", "finish"),
    "transform": ("transform_sample", "transform_batch"),
}
"""Group -> the methods that distinguish an option from any other class."""
WRAPPERS = {
    "loader": "fastloop.options.loader.user.UserLoader",
    "model": "fastloop.options.model.user.UserModel",
    "collate": "fastloop.options.collate.user.UserCollate",
    "transform": "fastloop.options.transform.user.UserTransform",
}
"""Group -> the class of the option that wraps an object of the user's. For datasets, the option is
`dataset=custom`."""
SAMPLE_FUNCTIONS = ("collate", "transform")
"""Groups in which the user's object is a function that is called with samples."""
BUILTIN_OPTIONS = "fastloop.options."
"""Start of the names of fastloop's own classes of options."""
CUSTOM_DATASET = "fastloop.options.dataset.custom.CustomDataset"
"""The `_target_` of the option that opens a user's Dataset."""


def wrap_target(group: str, node: Any) -> Any:
    """Return a node that wraps the user's class or function in the node, or the node unchanged.

    node: the part of the configuration that describes an option of the group. Raises ConfigError
    for a `_target_` that can't be imported or called, and for wrong arguments.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        return node
    try:
        target = str(node["_target_"] or "")
        if not target:
            raise ValueError("allowed: the dotted name of a class or a function")
        user_object = locate(target)
        if group not in OPTION_METHODS:
            return node
        parameters = parameters_of(target)
        kwargs = {name: value for name, value in node.items() if name != "_target_"}
        kwargs, settings = _split_settings(group, kwargs, parameters)
        _refuse_arguments(group, target, kwargs, parameters)
        # A class that has an option's methods is an option already, and needs no wrapper.
        if _is_option(group, user_object):
            return kwargs | settings | {"_target_": target}
        (check_callable if group in SAMPLE_FUNCTIONS else check_usable)(target)
    except ValueError as error:
        shown = "null" if node["_target_"] is None else node["_target_"]
        raise ConfigError(f"{group}._target_={shown}: {error}") from None
    if group == "dataset":
        own = {"target": target, "kwargs": kwargs}
        return option_values("dataset", "custom") | own | settings
    where = {"where": settings.get("where", "worker")} if group == "transform" else {}
    return {"_target_": WRAPPERS[group], "target": target, "kwargs": kwargs, **where}


def check_own_code(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for a name or an argument of the user's code that does not exist.

    Only the text of the user's module is read. Nothing is imported, so the error appears at once;
    errors that the text does not show appear later. jobs: configurations.
    """
    seen = set[str]()
    for job in jobs:
        for group, node in job.items():
            if isinstance(node, dict) and (key := f"{group} {node}") not in seen:
                seen.add(key)
                _check_node(group, node)


def _check_node(group: str, node: Mapping[str, Any]) -> None:
    """Raise ConfigError for a wrong name or argument, if the node names an object of the user's."""
    target, setting, prefix = node.get("_target_"), f"{group}._target_", group
    arguments = without_requirements(node)
    if target == CUSTOM_DATASET:
        target, setting, prefix = node["target"], "dataset.target", "dataset.kwargs"
        arguments = node["kwargs"] or {}
    if not isinstance(target, str) or not target or target.startswith(BUILTIN_OPTIONS):
        return
    try:
        parameters = read_parameters(target)
    except ValueError as error:
        raise ConfigError(f"{setting}={target}: {error}") from None
    if group not in OPTION_METHODS or parameters is None or not isinstance(arguments, dict):
        return
    if prefix == group:
        arguments = {name: value for name, value in arguments.items() if name != "_target_"}
        arguments, _ = _split_settings(group, arguments, parameters)
    _refuse_arguments(prefix, target, arguments, parameters)


def _refuse_arguments(
    prefix: str, target: str, given: Mapping[str, Any], parameters: Parameters | None
) -> None:
    """Raise ConfigError for an argument that the target does not accept, and for a missing argument
    of a Dataset or a model.

    prefix: the names of the arguments' settings without the last part, such as `dataset.kwargs`.
    """
    if parameters is None:
        return
    known = [] if parameters.takes_any else [*parameters.names]
    for name, value in given.items():
        if name in parameters.names or parameters.takes_any or name.startswith("_"):
            continue
        meant = closest_name(name, known)
        hint = f"{suggest(f'{prefix}.{meant}')} " if meant else ""
        # The first argument of a function of samples is the sample, and so is no allowed setting.
        first = known[:1] if prefix in SAMPLE_FUNCTIONS and meant not in known[:1] else []
        named = [each for each in known if each not in parameters.required & {*first}]
        allowed = ", ".join(f"{prefix}.{each}" for each in named) or "none"
        text = f"{prefix}.{name}={format_value(value)}: {target} has no argument {name}"
        raise ConfigError(f"{text}; {hint}allowed: {allowed}")
    # In other groups, fastloop itself passes required arguments: some to loaders, and the samples
    # to functions of samples.
    group = prefix.partition(".")[0]
    if group not in ("dataset", "model"):
        return
    # Hydra passes _args_ by position, and with _partial_ the caller passes the rest.
    if given.get("_args_") or given.get("_partial_"):
        return
    offered = OFFERED_TO_MODEL if group == "model" else ()
    needed = parameters.required - given.keys() - {*offered}
    missing = [name for name in parameters.names if name in needed]
    if missing:
        names = ", ".join(f"{prefix}.{name}" for name in missing)
        examples = " ".join(f"{prefix}.{name}=<value>" for name in missing)
        raise ConfigError(f"{names}: {target} has no default for it; add {examples}")


def pass_to_own_code(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides, with ++ before the arguments of the user's own code.

    Hydra refuses arguments that are in no yaml, unless they have a plus.

    >>> pass_to_own_code(["dataset._target_=mine.A", "dataset.count=3"])
    ('dataset._target_=mine.A', '++dataset.count=3')
    """
    own = {
        group
        for group in OPTION_METHODS
        for text in overrides
        if text.lstrip("+").startswith(f"{group}._target_=") and f"={BUILTIN_OPTIONS}" not in text
    }
    return tuple(
        f"++{text.lstrip('+')}" if _group_of_argument(text) in own else text for text in overrides
    )


def _group_of_argument(override: str) -> str:
    """The group of an override that sets an argument; empty for another override."""
    name, equals, _ = override.lstrip("+").partition("=")
    group, dot, last = name.partition(".")
    return group if equals and dot and last != "_target_" else ""


def user_targets(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, str]:
    """Group -> the `_target_` that the command line has set."""
    return {
        group: values[group]["_target_"]
        for group in OPTION_METHODS
        if any(override.lstrip("+").startswith(f"{group}._target_=") for override in overrides)
    }


def loader_brings_data(job: Job, choices: Mapping[str, str], overrides: Sequence[str]) -> bool:
    """True if a user's loader takes no dataset and the command line names none."""
    from fastloop.core.traits import LoaderTraits, traits_of

    if not traits_of(LoaderTraits, job.loader).brings_data:
        return False
    starts = ("dataset=", "dataset.", "dataset@")
    is_named = any(override.lstrip("+").startswith(starts) for override in overrides)
    return not is_named and choices["dataset"] == default_of("dataset")


def use_loader_data(job: Job) -> Job:
    """The job with a dataset that represents the data of its loader."""
    from fastloop.options.dataset.user import UserDataset

    loader: Any = job.loader
    data = UserDataset(loader=loader, plan=job.plan(job.seed), same_data=job.same_data)
    return replace(job, dataset=data)


def _split_settings(
    group: str, arguments: dict[str, Any], parameters: Parameters | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments into (arguments for the target, settings of the option that wraps it).

    The settings are those of dataset=custom, such as `version`, and `where` of a transform.
    """
    of_dataset = {*option_values("dataset", "custom")} - {"_target_", "target", "kwargs"}
    known = {"dataset": of_dataset, "transform": {"where"}}.get(group, set[str]())
    # If the target of a dataset has a parameter of the same name, the argument is for the target.
    # `where` is always a setting of the transform.
    if group == "dataset":
        names = known if parameters is None or parameters.takes_any else {*parameters.names}
        known = known - names
    settings = {name: value for name, value in arguments.items() if name in known}
    return {name: each for name, each in arguments.items() if name not in known}, settings


def _is_option(group: str, user_object: Any) -> bool:
    """True if the user's object has the methods of an option of the group."""
    # An iterable such as a file may have an `open` that has nothing to do with a loader's.
    is_iterable = group == "loader" and hasattr(user_object, "__iter__")
    methods = OPTION_METHODS[group]
    return not is_iterable and all(callable(getattr(user_object, name, None)) for name in methods)
