"""Where conf/ is, how a composed config becomes a Job, and errors in one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hydra
from hydra._internal import utils as hydra_utils
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fastloop.catalogue import default_of, help_text, known_names, resource_folder
from fastloop.files import outputs_folder, sweep_folders
from fastloop.refusal import explained, one_line

if TYPE_CHECKING:  # torch takes seconds to import: --cfg, --help and completion must not pay for it
    from fastloop.campaign import Sweep
    from fastloop.job import Job
    from fastloop.protocols import Launcher, Tracker

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


def allow_flags_anywhere() -> None:
    """Let `-m` stand before the last override, as Hydra 1.4 does (facebookresearch/hydra#3133).

    Hydra 1.3 refuses `loader=x -m trials=20`, because argparse takes all positionals at once.
    """
    plain = hydra_utils.get_args_parser

    def get_args_parser() -> Any:
        parser = plain()
        parser.parse_args = parser.parse_intermixed_args
        return parser

    hydra_utils.get_args_parser = get_args_parser
    # `import hydra.main` gives the function of that name, so the module is looked up here.
    vars(sys.modules["hydra.main"])["get_args_parser"] = get_args_parser


def register_experiments() -> None:
    """Make experiments/<name>.yaml selectable as experiment=<name>."""
    store = ConfigStore.instance()
    for path in sorted(resource_folder("experiments").glob("*.yaml")):
        node = OmegaConf.to_container(OmegaConf.load(path))
        store.store(
            group="experiment", name=path.stem, package="_global_", node=node, provider=str(path)
        )


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

    @property
    def config_yaml(self) -> str:
        """The resolved configuration."""
        return OmegaConf.to_yaml(self.config)


def compose_all(measure_here: Callable[[list[Composed]], int]) -> list[Composed]:
    """Every combination of the command line, built; empty after --help, --cfg and their like.

    A Hydra launcher with processes of its own (joblib, ray) calls measure_here in each of them,
    and nothing is left to be measured by the caller: empty, too.
    A wrong name or value ends the process with one line and status 1, before anything is written.
    """
    allow_flags_anywhere()
    register_experiments()
    # Hydra fills in $NAMES of its help once more
    OmegaConf.register_new_resolver(
        "fastloop_help", lambda: help_text().replace("$", "$$"), replace=True
    )
    found: list[Composed] = []
    before = set(sweep_folders())

    @hydra.main(version_base="1.3", config_path=str(resource_folder("conf")), config_name="config")
    def collect(cfg: DictConfig) -> None:
        one = _composed(cfg)
        if not _is_beside_others(one.sweep):
            found.append(one)
        elif measure_here([one]):
            raise ConfigError(f"{' '.join(one.overrides)}: this job has failed, see above")

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            collect()
    except BaseException as end:
        for sweep_folder in set(sweep_folders()) - before:
            remove_unused(sweep_folder)
        if isinstance(end, SystemExit):
            refused = one_line(said.getvalue(), known_names()) if end.code else said.getvalue()
            print(refused, file=sys.stderr)
        raise
    sys.stderr.write(said.getvalue())
    return found


def remove_unused(sweep_folder: Path) -> None:
    """Remove an output folder in which nobody but Hydra has written, and its empty parents.

    Never goes above the outputs folder.
    """
    top, sweep_folder = outputs_folder(), sweep_folder.absolute()
    if top not in sweep_folder.parents or not sweep_folder.is_dir():
        return
    hydras = sweep_folder / "multirun.yaml"
    others = [path for path in sweep_folder.iterdir() if path != hydras]
    if any(not path.is_dir() or any(path.iterdir()) for path in others):
        return
    hydras.unlink(missing_ok=True)
    for one in [*others, sweep_folder, *sweep_folder.parents]:
        if not one.is_dir() or any(one.iterdir()):
            return
        one.rmdir()
        if one == top:
            return


def _is_beside_others(sweep: Sweep) -> bool:
    """True under a Hydra launcher that runs jobs beside each other (joblib, ray)."""
    name = HydraConfig.get().runtime.choices["hydra/launcher"]
    if name != "basic" and not sweep.allow_concurrent:
        why = "it runs jobs beside each other, and they would measure each other"
        allowed = "allowed are basic, and any with allow_concurrent=true, which keeps out of ranks"
        raise ConfigError(f"hydra/launcher={name}: {why}; {allowed}")
    return name != "basic"


def _composed(cfg: DictConfig) -> Composed:
    from fastloop.own_data import OWN_DATA, brings_its_data, on_its_own_data, targets

    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    launcher = hydra_config.runtime.choices["hydra/launcher"]
    alone = hydra_config.mode == RunMode.RUN or launcher != "basic"
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    job = build_job(values)
    started_by = _of_torchrun(values)
    named = {k: str(v) for k, v in hydra_config.runtime.choices.items() if "hydra/" not in k}
    overrides = tuple(hydra_config.overrides.task)
    choices = {name.partition("@")[0]: value for name, value in named.items()}
    choices |= targets(values, overrides) | started_by
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


def _of_torchrun(values: dict[str, Any]) -> dict[str, str]:
    """The launcher's name where torchrun has started this: then it is `torchrun` in the values too,
    where `single` stood."""
    from fastloop.crew import of_torchrun

    if of_torchrun() is None:
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
