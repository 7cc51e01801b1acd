"""Build a request, its job and its options from the configuration that Hydra has composed.

A request (JobRequest) holds a job with its launcher, tracker and sweep settings. `values` is the
configuration as nested dicts, and a `node` is the part of it that describes one option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hydra.errors import InstantiationException
from omegaconf import OmegaConf

from fastloop.config.catalogue import default_options, option_values, options_of
from fastloop.config.composed_job import Combination
from fastloop.config.messages import ConfigError, instantiation_message
from fastloop.config.requirements import split_requirements
from fastloop.config.store_choice import choose_store
from fastloop.config.user_options import BUILTIN_OPTIONS, user_targets, wrap_target
from fastloop.config.value_messages import kind_message, validation_message
from fastloop.core.user_code import LOADER_DATA, locate
from fastloop.sweep.colours import loader_colour
from fastloop.sweep.job_config import job_config
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.core.loading_settings import LoadingSettings
    from fastloop.sweep.settings import SweepSettings
    from fastloop.trial.job import Job

T = TypeVar("T")
TARGET = "_target_"


def build_request(combination: Combination) -> JobRequest:
    """Build the request of one job. Raises ConfigError for an invalid value.

    combination: the job's composed configuration.
    """
    from fastloop.core.launcher import Launcher
    from fastloop.core.protocols import Tracker
    from fastloop.processes.environments import environment_for

    overrides = combination.overrides
    values = {**combination.values}
    job = build_job(values, overrides)
    # build_job may leave out the job's store. The recorded configuration has to show that.
    if job.loader.store is None and values["loader"].get("store"):
        values["loader"] = values["loader"] | {"store": None}
    choices = {name.partition("@")[0]: choice for name, choice in combination.choices.items()}
    choices |= user_targets(values, overrides)
    if _is_under_torchrun(overrides):
        choices["launcher"] = "torchrun"
        values["launcher"] = _torchrun_node(values["launcher"])
    if loader_brings_data(job, choices, overrides):
        job = use_loader_data(job)
        choices["dataset"] = "own_data"
        values["dataset"] = {"_target_": LOADER_DATA}
    launcher = _build_as(Launcher, "launcher", values["launcher"])
    if (environment := environment_for(job.requirements)) is not None:
        launcher = replace(launcher, environment=environment.folder)
    return JobRequest(
        job=job,
        sweep=build_sweep(values),
        launcher=launcher,
        tracker=_build_as(Tracker, "tracker", values["tracker"]),
        choices=choices,
        overrides=overrides,
        config=values,
        config_yaml=OmegaConf.to_yaml(values),
        colour=loader_colour(choices["loader"], options_of("loader")),
        folder=combination.folder,
        sweep_folder=combination.sweep_folder,
    )


def loader_brings_data(job: Job, choices: Mapping[str, str], overrides: Sequence[str]) -> bool:
    """True if a user's loader takes no dataset and the command line names none."""
    from fastloop.core.traits import LoaderTraits, traits_of

    if not traits_of(LoaderTraits, job.loader).brings_data:
        return False
    starts = ("dataset=", "dataset.", "dataset@")
    is_named = any(override.lstrip("+").startswith(starts) for override in overrides)
    return not is_named and choices["dataset"] == default_options()["dataset"]


def use_loader_data(job: Job) -> Job:
    """The job with a dataset that represents the data of its loader."""
    from fastloop.options.dataset.user import UserDataset

    loader: Any = job.loader
    data = UserDataset(loader=loader, plan=job.plan(job.seed), same_data=job.same_data)
    return replace(job, dataset=data)


def build_sweep(values: dict[str, Any]) -> SweepSettings:
    """Build the settings of the whole sweep. Raises ConfigError for an invalid value."""
    from fastloop.sweep.settings import SWEEP_SETTINGS, SweepSettings

    return _translate_errors(
        "", lambda: SweepSettings(**{name: values[name] for name in SWEEP_SETTINGS})
    )


def check_settings(values: dict[str, Any]) -> None:
    """Raise ConfigError for a wrong value of a setting that belongs to no option.

    torch is not imported, so the error appears at once.
    """
    from fastloop.trial.job_settings import JobSettings

    build_sweep(values)
    of_job = job_config(values)
    _build_loading(of_job)
    names = [field.name for field in fields(JobSettings)]  # pyright: ignore[reportArgumentType]
    settings = {name: of_job[name] for name in names if name in of_job}
    _translate_errors("", lambda: JobSettings(**settings))


def _build_loading(settings: dict[str, Any]) -> LoadingSettings:
    """Build the settings that torch's DataLoader has, too, and remove them from `settings`."""
    from fastloop.core.loading_settings import LOADING, LoadingSettings

    values = {name: settings.pop(name) for name in LOADING if name in settings}
    return _translate_errors("", lambda: LoadingSettings(**values))


def build_job(values: dict[str, Any], overrides: Sequence[str] = ()) -> Job:
    """Build the job that the configuration describes. Raises ConfigError for an invalid value.

    overrides: overrides of the command line. If other settings rule out the job's store, the store
    is left out, unless an override asks for a store.
    """
    from fastloop.data.cropped_dataset import crop_dataset
    from fastloop.trial.job import Job

    of_job = job_config(values)
    of_loader, of_placement = (
        tuple(dict.fromkeys(split_requirements(group, of_job[group])[1]))
        for group in ("loader", "placement")
    )
    nodes = {name: node for name, node in of_job.items() if _is_group(node)}
    settings = {name: value for name, value in of_job.items() if name not in nodes}
    options = {name: build_option(name, node) for name, node in nodes.items()}
    loading = _build_loading(settings)
    job = _translate_errors(
        "",
        lambda: Job(
            **options,
            **settings,
            loading=loading,
            loader_requirements=of_loader,
            placement_requirements=of_placement,
        ),
    )
    job = replace(job, dataset=crop_dataset(job.dataset, job.transform))
    return choose_store(job, overrides)


def build_option(group: str, node: Any) -> Any:
    """Build the object of a group's `_target_`, or a dict of such objects. Raises ConfigError."""
    from hydra.utils import instantiate

    wrapped = wrap_target(group, split_requirements(group, node)[0])
    # Hydra takes 3 ms for each object, and `fastloop tune` may look at thousands of jobs. So Hydra
    # builds only objects of the user's classes, and objects with a wrong value, because its error
    # names the setting.
    if _is_builtin(wrapped):
        with suppress(Exception):
            return _build_builtin(wrapped)
    return _translate_errors(group, lambda: instantiate(wrapped, _convert_="all"))


def _is_builtin(node: Any) -> bool:
    """True if all classes in the node are fastloop's own, and Hydra would not change its values."""
    if isinstance(node, list):
        return all(map(_is_builtin, node))
    if isinstance(node, str):
        return "${" not in node and node != "???"
    if not isinstance(node, dict):
        return True
    special = {str(name) for name in node if str(name).startswith("_")}
    is_builtin = str(node.get(TARGET, BUILTIN_OPTIONS)).startswith(BUILTIN_OPTIONS)
    return special <= {TARGET} and is_builtin and all(map(_is_builtin, node.values()))


def _build_builtin(node: Any) -> Any:
    """Build the objects of a node for which `_is_builtin` is true, without Hydra."""
    if isinstance(node, list):
        return [_build_builtin(each) for each in node]
    if not isinstance(node, dict):
        return node
    values = {name: _build_builtin(value) for name, value in node.items() if name != TARGET}
    return locate(node[TARGET])(**values) if TARGET in node else values


def _build_as(protocol: type, group: str, node: Any) -> Any:
    """Build the object of the group's `_target_`. Raises ConfigError unless it satisfies the
    Protocol."""
    built = build_option(group, node)
    if not isinstance(built, protocol):
        raise ConfigError(kind_message(group, built, protocol.__name__))
    return built


def _translate_errors(group: str, build: Callable[[], T]) -> T:
    """The result of build(); its errors about invalid values are raised as ConfigError."""
    from pydantic import ValidationError

    try:
        return build()
    except InstantiationException as error:
        raise ConfigError(instantiation_message(group, error)) from None
    except ValidationError as error:
        raise ConfigError(validation_message(group, error)) from None


def _is_group(node: Any) -> bool:
    """True if the node describes an option, or is a dict with such a node."""
    return isinstance(node, dict) and ("_target_" in node or any(map(_is_group, node.values())))


def _is_under_torchrun(overrides: tuple[str, ...]) -> bool:
    """True in a process that torchrun has started, unless the user chose `launcher=single`."""
    # torchrun runs this command in each of its processes. With the default launcher, each process
    # would measure by itself.
    from fastloop.processes.torchrun_env import torchrun_process

    return torchrun_process() is not None and "launcher=single" not in overrides


def _torchrun_node(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node of a torchrun launcher: the given one, or the default settings in its place.

    Of another launcher's node, only `isolation` is kept.
    """
    if "nproc_per_node" in node:
        return node
    return option_values("launcher", "torchrun") | {"isolation": node["isolation"]}
