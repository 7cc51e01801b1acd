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

from fastloop.files import outputs_folder

if TYPE_CHECKING:  # torch takes seconds to import: --cfg, --help and completion must not pay for it
    from fastloop.job import Job
    from fastloop.types import Launcher, Tracker

PACKAGE = Path(__file__).resolve().parent
ENDS = ("launcher", "tracker")
"""Groups that belong to the sweep and not to the job."""
SWEEP_SETTINGS = ("isolation",)
"""Top-level settings that conf/launcher hands to the launcher."""

T = TypeVar("T")


class ConfigError(CompactHydraException):
    """A wrong value: Hydra prints its message alone, without a traceback, and exits with 1."""


def resource_folder(name: str) -> Path:
    """conf or experiments: beside the package in a checkout, inside it in a wheel."""
    for base in (PACKAGE.parent, PACKAGE):
        if (base / name / ("config.yaml" if name == "conf" else "quickstart.yaml")).is_file():
            return base / name
    raise FileNotFoundError(f"{name}: neither beside {PACKAGE} nor inside it")


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


def settings_text() -> str:
    """Every top-level setting with its default and its meaning, as conf/config.yaml has them."""
    text = (resource_folder("conf") / "config.yaml").read_text()
    return text[text.index("batch_size:") : text.index("\nhydra:")]


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
    launcher: Launcher
    tracker: Tracker
    choices: dict[str, str]
    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    sweep_folder: Path


def compose_all() -> list[Composed]:
    """Every combination of the command line, built; empty after --help, --cfg and their like.

    A wrong name or value ends the process with one line and status 1, before anything is written.
    """
    allow_flags_anywhere()
    register_experiments()
    OmegaConf.register_new_resolver("fastloop_settings", settings_text, replace=True)
    found: list[Composed] = []
    folders: list[Path] = []

    @hydra.main(version_base="1.3", config_path=str(resource_folder("conf")), config_name="config")
    def collect(cfg: DictConfig) -> None:
        folders.append(Path(HydraConfig.get().runtime.output_dir))
        found.append(_composed(cfg))

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            collect()
    except SystemExit as end:
        for folder in folders:
            remove_unused(folder)
        print(one_line(said.getvalue()) if end.code else said.getvalue(), file=sys.stderr)
        raise
    sys.stderr.write(said.getvalue())
    return found


def one_line(said: str) -> str:
    """What Hydra says of a wrong name or value, in one line; a traceback stays as it is."""
    if "Traceback" in said:
        return said
    noise = ("Error executing job", "Set the environment variable", "Set hydra.searchpath")
    lines = [line.strip() for line in said.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith(noise))


def remove_unused(folder: Path) -> None:
    """Remove an output folder in which nobody but Hydra has written, and its empty parents.

    Never goes above the outputs folder.
    """
    top = outputs_folder()
    if top not in folder.absolute().parents:
        return
    (folder.parent / "multirun.yaml").unlink(missing_ok=True)
    for one in [folder.absolute(), *folder.absolute().parents]:
        if one.is_dir() and any(one.iterdir()):
            return
        if one.is_dir():
            one.rmdir()
        if one == top:
            return


def _composed(cfg: DictConfig) -> Composed:
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    alone = hydra_config.mode == RunMode.RUN
    values: Any = OmegaConf.to_container(cfg, resolve=True)
    job = _build_job(values)
    choices = {k: str(v) for k, v in hydra_config.runtime.choices.items() if "hydra/" not in k}
    return Composed(
        job=job,
        launcher=instantiated("launcher", values["launcher"]),
        tracker=instantiated("tracker", values["tracker"]),
        choices={name.partition("@")[0]: value for name, value in choices.items()},
        overrides=tuple(hydra_config.overrides.task),
        config=values,
        folder=folder / "0" if alone else folder,
        sweep_folder=folder if alone else folder.parent,
    )


def _build_job(values: dict[str, Any]) -> Job:
    from fastloop.job import Job

    groups = {name: node for name, node in values.items() if _is_group(node) and name not in ENDS}
    settings = {k: v for k, v in values.items() if k not in (*groups, *ENDS, *SWEEP_SETTINGS)}
    options = {name: instantiated(name, node) for name, node in groups.items()}
    return in_one_line("", lambda: Job(**options, **settings))


def instantiated(name: str, node: Any) -> Any:
    """The object that a group's `_target_` names, or a dict of them."""
    from hydra.utils import instantiate

    return in_one_line(name, lambda: instantiate(node, _convert_="all"))


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
            raise ConfigError(_explained(where, cause)) from None
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        raise ConfigError(_explained(setting, error)) from None


def _explained(setting: str, error: Any) -> str:
    lines = []
    for one in error.errors():
        name = ".".join(str(part) for part in (setting, *one["loc"]) if str(part))
        if one["type"] == "unexpected_keyword_argument":
            lines.append(f"{name}: there is no such setting")
        elif one["loc"]:
            lines.append(f"{name}={one['input']}: {one['msg']}")
        else:
            lines.append(one["msg"].removeprefix("Value error, "))
    return "; ".join(lines)


def _is_group(node: Any) -> bool:
    """True for an option or a dict of options."""
    return isinstance(node, dict) and ("_target_" in node or any(map(_is_group, node.values())))
