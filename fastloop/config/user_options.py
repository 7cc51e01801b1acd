"""Use the user's own classes and functions as options: `<group>._target_=module.name`.

For example, `dataset._target_=mine.Squares dataset.count=5` becomes the option dataset=custom,
which calls `mine.Squares(count=5)`. `wrap_target` puts a class or function into such an option.
`check_own_code` finds wrong names and arguments early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastloop.config.catalogue import option_values, without_requirements
from fastloop.config.messages import ConfigError
from fastloop.config.value_messages import format_value
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


@dataclass(frozen=True, kw_only=True)
class UserCall:
    """A call of the user's class or function with the arguments from a configuration."""

    group: str
    target: str
    """Dotted name of the class or function."""
    parameters: Parameters
    arguments: Mapping[str, Any]
    path: str
    """Dotted name of the part of the configuration with the arguments: `dataset.kwargs` for the
    arguments of dataset=custom, otherwise the group."""


def wrap_target(group: str, node: Any) -> Any:
    """The description of an option that calls the user's class or function in the node.

    node: the part of the configuration that describes an option of the group. A node stays as it is
    if it has no `_target_`, if its target is an option already, or if the group is not in
    OPTION_METHODS. Raises ConfigError for a `_target_` that can't be imported or called, and for
    wrong arguments.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        return node
    try:
        return _wrap_node(group, node)
    except ValueError as error:
        shown = "null" if node["_target_"] is None else node["_target_"]
        raise ConfigError(f"{group}._target_={shown}: {error}") from None


def _wrap_node(group: str, node: dict[str, Any]) -> dict[str, Any]:
    """Wrap the `_target_` of the node, see `wrap_target`.

    Raises ValueError for a `_target_` that can't be imported or called, and ConfigError for wrong
    arguments.
    """
    target = str(node["_target_"] or "")
    if not target:
        raise ValueError("allowed: the dotted name of a class or a function")
    user_object = locate(target)
    if group not in OPTION_METHODS:
        return node
    parameters = parameters_of(target)
    arguments, settings = _split_node(group, node, parameters)
    if parameters is not None:
        call = UserCall(
            group=group, target=target, parameters=parameters, arguments=arguments, path=group
        )
        _refuse_arguments(call)
    # A class that has an option's methods is an option already, and needs no wrapper.
    if _is_option(group, user_object):
        return node | {"_target_": target}
    (check_callable if group in SAMPLE_FUNCTIONS else check_usable)(target)
    return _default_wrapper(group) | {"target": target, "kwargs": arguments} | settings


def _default_wrapper(group: str) -> dict[str, Any]:
    """The node of the option that wraps an object of the user's, with default settings."""
    if group == "dataset":
        return {**option_values("dataset", "custom")}
    where = {"where": "worker"} if group == "transform" else {}
    return {"_target_": WRAPPERS[group], **where}


def _split_node(
    group: str, node: Mapping[str, Any], parameters: Parameters | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a node into (arguments for the user's object, settings of the wrapping option).

    The settings are the settings of dataset=custom, such as `version`, and `where` of a transform.
    If a user's Dataset has a parameter with the name of a setting, the name sets the parameter.

    parameters: the parameters of the user's object; None if they are not known.
    """
    of_wrapper: set[str] = {"where"} if group == "transform" else set()
    if group == "dataset":
        of_wrapper = option_values("dataset", "custom").keys() - {"_target_", "target", "kwargs"}
        if parameters is not None and not parameters.takes_any:
            of_wrapper -= {*parameters.names}
    arguments = {
        name: value for name, value in node.items() if name not in (*of_wrapper, "_target_")
    }
    return arguments, {name: value for name, value in node.items() if name in of_wrapper}


def _is_option(group: str, user_object: Any) -> bool:
    """True if the user's object has the methods of an option of the group."""
    # An iterable such as a file may have an `open` that has nothing to do with a loader's.
    is_iterable = group == "loader" and hasattr(user_object, "__iter__")
    methods = OPTION_METHODS[group]
    return not is_iterable and all(callable(getattr(user_object, name, None)) for name in methods)


def check_own_code(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError for a name or an argument of the user's code that does not exist.

    Only the text of the user's module is read. Nothing is imported, so the error appears at once.
    Errors that the text does not show appear later. jobs: the configuration of each job.
    """
    seen = set[str]()
    for job in jobs:
        for group, node in job.items():
            if isinstance(node, dict) and (key := f"{group} {node}") not in seen:
                seen.add(key)
                _check_node(group, node)


def _check_node(group: str, node: Mapping[str, Any]) -> None:
    """Raise ConfigError for a wrong name or argument, if the node names an object of the user's."""
    target: Any = node.get("_target_")
    if target == CUSTOM_DATASET:
        target = node["target"]
        parameters = _read_parameters_of(target, "dataset.target")
        arguments, path = node["kwargs"] or {}, "dataset.kwargs"
    else:
        parameters = _read_parameters_of(target, f"{group}._target_")
        arguments, _ = _split_node(group, without_requirements(node), parameters)
        path = group
    # In other groups, and for arguments that are no dict, the error appears when the job is built.
    if group in OPTION_METHODS and parameters is not None and isinstance(arguments, dict):
        call = UserCall(
            group=group, target=target, parameters=parameters, arguments=arguments, path=path
        )
        _refuse_arguments(call)


def _read_parameters_of(target: Any, setting: str) -> Parameters | None:
    """The parameters of the user's class or function, from the text of its module.

    None if the text does not tell, or if the target is no dotted name or belongs to fastloop.
    Raises ConfigError for a name that does not exist. setting: dotted name of the setting with the
    target.
    """
    if not isinstance(target, str) or not target or target.startswith(BUILTIN_OPTIONS):
        return None
    try:
        return read_parameters(target)
    except ValueError as error:
        raise ConfigError(f"{setting}={target}: {error}") from None


def _refuse_arguments(call: UserCall) -> None:
    """Raise ConfigError for unknown and missing arguments."""
    if not call.parameters.takes_any:
        _refuse_unknown_arguments(call)
    # In other groups, fastloop itself passes required arguments: some to loaders, and the samples
    # to functions of samples.
    if call.group in ("dataset", "model"):
        _refuse_missing_arguments(call)


def _refuse_unknown_arguments(call: UserCall) -> None:
    """Raise ConfigError for the first argument that the target does not accept."""
    parameters = call.parameters
    for name, value in call.arguments.items():
        # Names such as _convert_ are Hydra's.
        if name in parameters.names or name.startswith("_"):
            continue
        meant = closest_name(name, parameters.names)
        hint = f"{suggest(f'{call.path}.{meant}')} " if meant else ""
        # fastloop passes the sample as the first argument of a function of samples. So a required
        # first argument is no setting, and is listed only if the hint names it.
        first = parameters.names[:1] if call.group in SAMPLE_FUNCTIONS else ()
        hidden = parameters.required & {*first} - {meant}
        names = [f"{call.path}.{each}" for each in parameters.names if each not in hidden]
        shown = f"{call.path}.{name}={format_value(value)}"
        problem = f"{call.target} has no argument {name}"
        raise ConfigError(f"{shown}: {problem}; {hint}allowed: {', '.join(names) or 'none'}")


def _refuse_missing_arguments(call: UserCall) -> None:
    """Raise ConfigError for missing arguments of a Dataset or a model."""
    # Hydra passes _args_ by position, and with _partial_ the caller passes the rest.
    if call.arguments.get("_args_") or call.arguments.get("_partial_"):
        return
    offered = OFFERED_TO_MODEL if call.group == "model" else ()
    needed = call.parameters.required - call.arguments.keys() - {*offered}
    missing = [f"{call.path}.{name}" for name in call.parameters.names if name in needed]
    if missing:
        examples = " ".join(f"{name}=<value>" for name in missing)
        reason = f"{call.target} has no default for it; add {examples}"
        raise ConfigError(f"{', '.join(missing)}: {reason}")


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
        if _sets_target(text, group) and f"={BUILTIN_OPTIONS}" not in text
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
    """Group -> the `_target_` that the command line has set.

    values: the configuration that was composed from the overrides.
    """
    return {
        group: values[group]["_target_"]
        for group in OPTION_METHODS
        if any(_sets_target(text, group) for text in overrides)
    }


def _sets_target(override: str, group: str) -> bool:
    """True if the override sets the `_target_` of the group, with or without a plus."""
    return override.lstrip("+").startswith(f"{group}._target_=")
