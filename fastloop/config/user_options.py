"""User classes and functions as options: `<group>._target_=module.name`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastloop.config.catalogue import default_of, option_values
from fastloop.config.messages import ConfigError
from fastloop.core.user_code import check_callable, check_usable, locate, parameter_names

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
"""Group -> the option that wraps a user object. For datasets, it is `dataset=custom`."""
FUNCTIONS = ("collate", "transform")
"""Groups in which a user object is a function of samples."""


def wrap_target(group: str, node: Any) -> Any:
    """Return the node; or, if it names a user's class or function, a node of the wrapping option.

    Raises ConfigError for a `_target_` that can't be imported or called.
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
        kwargs = _user_arguments(group, node, target)
        # A class that has an option's methods is an option already, and needs no wrapper.
        if _is_option(group, user_object):
            return kwargs | {"_target_": target}
        (check_callable if group in FUNCTIONS else check_usable)(target)
    except ValueError as error:
        shown = "null" if node["_target_"] is None else node["_target_"]
        raise ConfigError(f"{group}._target_={shown}: {error}") from None
    if group == "dataset":
        return option_values("dataset", "custom") | {"target": target, "kwargs": kwargs}
    where = {"where": kwargs.pop("where", "worker")} if group == "transform" else {}
    return {"_target_": WRAPPERS[group], "target": target, "kwargs": kwargs, **where}


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


def _user_arguments(group: str, node: Mapping[str, Any], target: str) -> dict[str, Any]:
    """The node's arguments for the target."""
    # A command line that changes only the `_target_` leaves the settings of the group's default
    # option in the node. They are removed, unless the target has parameters of these names.
    defaults = option_values(group, default_of(group))
    left_over = {name for name, value in node.items() if defaults.get(name, ...) == value}
    left_over = (left_over - parameter_names(target)) | {"_target_"}
    return {name: value for name, value in node.items() if name not in left_over}


def _is_option(group: str, user_object: Any) -> bool:
    # An iterable such as a file may have an `open` that has nothing to do with a loader's.
    is_iterable = group == "loader" and hasattr(user_object, "__iter__")
    methods = OPTION_METHODS[group]
    return not is_iterable and all(callable(getattr(user_object, name, None)) for name in methods)
