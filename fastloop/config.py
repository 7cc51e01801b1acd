"""Where conf/ is, how a composed config becomes a Job, and errors in one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fastloop.catalogue import default_of, help_text, known_names, resource_folder
from fastloop.files import remove_unused, sweep_folders
from fastloop.hydra_patches import allow_flags_anywhere, looking_first
from fastloop.names import names_of
from fastloop.refusal import explained, one_line

if TYPE_CHECKING:  # torch takes seconds to import: --cfg, --help and completion must not pay for it
    from fastloop.campaign import Sweep
    from fastloop.ends import Launcher, Tracker
    from fastloop.job import Job

ENDS = ("launcher", "tracker")
"""Groups that belong to the sweep and not to the job."""
SWEEP_SETTINGS = (
    *("baseline", "interleave", "report", "profile", "resume", "retry_failed", "wait"),
    "allow_concurrent",
)
"""Top-level settings that belong to the sweep, fields of campaign.Sweep."""

T = TypeVar("T")


class ConfigError(CompactHydraException):
    """A wrong value: Hydra prints its message alone, without a traceback, and exits with 1."""


def register_experiments() -> None:
    """Make experiments/<name>.yaml selectable as experiment=<name>, and what one brings for itself,
    experiments/<name>/<group>/<option>.yaml, as <group>=<name>/<option>."""
    store, folder = ConfigStore.instance(), resource_folder("experiments")
    own = {path: f"{path.parts[-2]}/{path.parts[-3]}" for path in folder.glob("*/*/*.yaml")}
    groups = dict.fromkeys(folder.glob("*.yaml"), "experiment") | own
    for path, group in sorted(groups.items()):
        node = OmegaConf.to_container(OmegaConf.load(path))
        store.store(group=group, name=path.stem, package="_global_", node=node, provider=str(path))


@dataclass(frozen=True, kw_only=True)
class Composed:
    """One combination of a sweep, built: nothing of it has been measured yet."""

    job: Job
    sweep: Sweep
    launcher: Launcher
    tracker: Tracker
    choices: dict[str, str]
    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    sweep_folder: Path
    name: str = ""
    """Where it is known already, see names_of."""
    is_done: bool = False
    """It has been measured in a process of its own."""

    @property
    def config_yaml(self) -> str:
        """The resolved configuration."""
        return OmegaConf.to_yaml(self.config)


def compose_all(measure_here: Callable[[list[Composed]], int]) -> list[Composed]:
    """Every combination of the command line, built; empty after --help, --cfg and their like.

    A Hydra launcher with processes of its own (joblib, ray, submitit) calls measure_here in each of
    them, for its own combination; then all of them are there with is_done.
    A wrong name or value ends the process with one line and status 1, before anything is written.
    """
    allow_flags_anywhere()
    register_experiments()
    # Hydra fills in $NAMES of its help once more
    OmegaConf.register_new_resolver(
        "fastloop_help", lambda: help_text().replace("$", "$$"), replace=True
    )
    found: list[Composed] = []
    handed_out: list[Composed] = []
    names: list[str] = []
    before = set(sweep_folders())

    @hydra.main(version_base="1.3", config_path=str(resource_folder("conf")), config_name="config")
    def collect(cfg: DictConfig) -> None:
        one = _composed(cfg)
        if HydraConfig.get().runtime.choices["hydra/launcher"] == "basic":
            found.append(one)
        else:
            _measured_apart(one, names, measure_here)

    def look(configs: Iterator[DictConfig]) -> None:
        handed_out.extend(map(_looked_at, configs))
        names[:] = names_of(handed_out)
        where = f"results go to {handed_out[0].sweep_folder}"
        print(f"{_launcher_told()} jobs handed to it: {len(handed_out)}; {where}", file=err)

    said, err = io.StringIO(), sys.stderr
    try:
        with contextlib.redirect_stderr(said), looking_first(look):
            collect()
        sys.stderr.write(said.getvalue())
    except BaseException as end:
        for sweep_folder in set(sweep_folders()) - before:
            remove_unused(sweep_folder)
        if isinstance(end, SystemExit):
            refused = one_line(said.getvalue(), known_names()) if end.code else said.getvalue()
            print(refused, file=sys.stderr)
        if not any(one.folder.is_dir() for one in handed_out):
            raise
    named = zip(handed_out, names, strict=True)
    return found + [replace(one, name=name, is_done=True) for one, name in named]


def _measured_apart(
    one: Composed, names: list[str], measure_here: Callable[[list[Composed]], int]
) -> None:
    """Measure it in this process, which a Hydra launcher has started; raises ConfigError where that
    has failed."""
    if not names:
        raise ConfigError(f"{_launcher_told()} only a sweep is handed to it: -m")
    if measure_here([replace(one, name=names[int(one.folder.name)])]):
        raise ConfigError(f"{' '.join(one.overrides)}: this job has failed, see above")


def _launcher_told() -> str:
    return f"hydra/launcher={HydraConfig.get().runtime.choices['hydra/launcher']}:"


def _looked_at(cfg: DictConfig) -> Composed:
    """The combination; raises ConfigError for what a Hydra launcher with processes of its own can't
    be asked for."""
    one = _composed(cfg)
    sweep = one.sweep
    if not sweep.allow_concurrent:
        why = "it runs jobs beside each other or on different machines, and not in rounds"
        allowed = "allowed are basic, and any with allow_concurrent=true, which keeps out of ranks"
        raise ConfigError(f"{_launcher_told()} {why}; {allowed}")
    if sweep.resume:
        raise ConfigError(f"resume={sweep.resume}: {_launcher_told()} only basic resumes a sweep")
    if one.launcher.member.size > 1:
        why = "these processes do one job at a time, together; allowed is basic"
        raise ConfigError(f"{_launcher_told()} {why}")
    asked = HydraConfig.get().launcher
    for name in ("nodes", "tasks_per_node"):  # submitit's
        if (asked.get(name) or 1) > 1:
            why = "each of them would measure the same; launcher=torchrun starts several processes"
            raise ConfigError(f"hydra.launcher.{name}={asked[name]}: allowed is 1, {why}")
    return one


def _composed(cfg: DictConfig) -> Composed:
    from fastloop.own_data import OWN_DATA, brings_its_data, on_its_own_data, targets

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    alone = hydra_config.mode == RunMode.RUN
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    job = build_job(values)
    named = {k: str(v) for k, v in hydra_config.runtime.choices.items() if "hydra/" not in k}
    overrides = tuple(hydra_config.overrides.task)
    choices = {name.partition("@")[0]: value for name, value in named.items()}
    choices |= targets(values, overrides) | _of_torchrun(values, overrides)
    if brings_its_data(job, choices, overrides):
        job, choices["dataset"] = on_its_own_data(job), "own_data"
        values["dataset"] = {"_target_": OWN_DATA}
    return Composed(
        job=job,
        sweep=_build_sweep(values),
        launcher=instantiated("launcher", values["launcher"]),
        tracker=instantiated("tracker", values["tracker"]),
        choices=choices,
        overrides=overrides,
        config=values,
        folder=folder / "0" if alone else folder,
        sweep_folder=folder if alone else folder.parent,
    )


def _of_torchrun(values: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, str]:
    """The launcher's name where torchrun has started this: then it is `torchrun` in the values too,
    where `single` stood and nobody has asked for it."""
    from fastloop.crew import of_torchrun

    if of_torchrun() is None or "launcher=single" in overrides:
        return {}
    if "nnodes" not in values["launcher"]:
        own = {"isolation": values["launcher"]["isolation"]}
        values["launcher"] = _raw("launcher", "torchrun") | own
    return {"launcher": "torchrun"}


def of_the_job(values: dict[str, Any]) -> dict[str, Any]:
    """The part of the configuration that says what a job's trials are."""
    # conf/launcher hands `isolation` to the launcher
    others = (*ENDS, *SWEEP_SETTINGS, "isolation")
    return {name: node for name, node in values.items() if name not in others}


def _build_sweep(values: dict[str, Any]) -> Sweep:
    from fastloop.campaign import Sweep

    return in_one_line("", lambda: Sweep(**{name: values[name] for name in SWEEP_SETTINGS}))


def build_job(values: dict[str, Any]) -> Job:
    """The job that these values describe; raises ConfigError for a wrong one."""
    from fastloop.job import Job

    mine = of_the_job(values)
    groups = {name: node for name, node in mine.items() if _is_group(node)}
    settings = {name: value for name, value in mine.items() if name not in groups}
    options = {name: instantiated(name, node) for name, node in groups.items()}
    return in_one_line("", lambda: Job(**options, **settings))


def instantiated(name: str, node: Any) -> Any:
    """The object that a group's `_target_` names, or a dict of them."""
    from hydra.utils import instantiate

    spelled = _spelled_out(name, node)
    return in_one_line(name, lambda: instantiate(spelled, _convert_="all"))


def _spelled_out(name: str, node: Any) -> Any:
    """The node, or that of the option which stands for what the user has written.

    Raises ConfigError for a `_target_` that can't be imported.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        return node
    from fastloop.own import OPTION_METHODS, long_form

    defaults = _raw(name, default_of(name)) if name in OPTION_METHODS else {}
    try:
        return long_form(name, node, _raw("dataset", "custom"), defaults)
    except ValueError as why:
        raise ConfigError(f"{name}._target_={node['_target_']}: {why}") from None


def _raw(group: str, option: str) -> Any:
    """What the option's yaml says, as it stands there."""
    path = resource_folder("conf") / group / f"{option}.yaml"
    return OmegaConf.to_container(OmegaConf.load(path))


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf by its dotted name."""
    if not isinstance(values, dict):
        return {prefix: values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}.{name}" if prefix else str(name))
    return found


def in_one_line(setting: str, make: Callable[[], T]) -> T:
    """make(), with whatever is wrong with its values said in one line: setting=value: why."""
    from pydantic import ValidationError

    try:
        return make()
    except InstantiationException as error:
        cause = error.__cause__
        full_key = re.search(r"full_key: (\S+)", str(error))
        where = ".".join(part for part in (setting, full_key.group(1) if full_key else "") if part)
        if isinstance(cause, ValidationError):
            raise ConfigError(explained(where, cause)) from None
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise ConfigError(explained(setting, error)) from None


def _is_group(node: Any) -> bool:
    """True for an option or a dict of options."""
    return isinstance(node, dict) and ("_target_" in node or any(map(_is_group, node.values())))
