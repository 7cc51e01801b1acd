"""List the groups, options and settings of conf/, with their defaults and meanings.

A group is a folder of conf/, and an option is a yaml file in the folder. A meaning is a comment in
a yaml file. --help, `fastloop list` and messages show these lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of the package fastloop."""
OUTPUTS = "${oc.env:FASTLOOP_OUTPUTS,outputs}"
"""Beginning of a default path in the outputs folder. Lists show `outputs` in its place."""
STORE_MEANING = "chosen by the loader; store@loader.store=<option> picks another"
"""The meaning of the group `store`, which has no row in the defaults list of conf/config.yaml."""
SETTING_LINE = re.compile(r"^(\w+): +(.*?)(?: +# (.*))?$", re.M)
"""Pattern of a setting in a file of conf/: name, default and meaning. The files are read as text,
because yaml parsers drop comments."""
OWN_PATH = "your own "
"""Beginning of the meaning of a dataset's setting if the setting is the path of the user's own
files. The files have to exist. If the path may be null, the meaning also has `null: ...`."""
REQUIREMENTS = "requirements"
"""Name of a setting with arguments of pip install. Options of several groups accept this setting,
even if their yaml files do not list it."""
DEFAULTS_ROW = re.compile(r"^  - (\w+): +(\w+) +# (.*)$", re.M)
"""Pattern of a row of the defaults list in conf/config.yaml: group, option and meaning."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting in a yaml file of conf/."""

    name: str
    default: str
    """The default, as it is written in the file."""
    meaning: str
    """The comment; empty if there is none."""

    @property
    def is_own_path(self) -> bool:
        """True for a dataset's setting that is the path of the user's own files."""
        return self.meaning.startswith(OWN_PATH)

    @property
    def explains_null(self) -> bool:
        """True if the meaning explains the value null, so that the user need not set a path."""
        return "null: " in self.meaning


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a group, read from the option's yaml file."""

    name: str
    meaning: str
    """The comment in the first line of the file; empty if there is none."""
    settings: tuple[Setting, ...]
    """The settings of the option; empty if the file names no class (`_target_`)."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of options, read from a folder of conf/."""

    name: str
    default: str
    """The default option; "null" or empty if the group has none."""
    meaning: str
    options: tuple[Option, ...]

    @property
    def path(self) -> str:
        """Dotted path of the group in the configuration."""
        return "loader.store" if self.name == "store" else self.name


def resource_folder(name: str) -> Path:
    """The folder conf or experiments, which is next to the package or, in a wheel, in resources/.

    Raises FileNotFoundError if the folder is in neither place.
    """
    # The folder is recognised by a file in it: site-packages may have a folder conf that belongs to
    # another package.
    file = "config.yaml" if name == "conf" else "quickstart/sweep.yaml"
    for base in (PACKAGE.parent, PACKAGE / "resources"):
        if (base / name / file).is_file():
            return base / name
    raise FileNotFoundError(f"{name}: neither next to {PACKAGE} nor in its resources/")


def experiment_files() -> dict[str, Path]:
    """Name of an experiment, as in experiment=<name> -> its yaml file.

    experiments/<question>/sweep.yaml has the name <question>. Another sweep in that folder,
    experiments/<question>/<sweep>.yaml, has the name <question>_<sweep>.
    """
    paths = resource_folder("experiments").glob("*/*.yaml")
    names = {path: f"{path.parent.name}_{path.stem}".removesuffix("_sweep") for path in paths}
    return {name: path for path, name in sorted(names.items(), key=lambda pair: pair[1])}


def options_of(group: str) -> list[str]:
    """Names of a group's options."""
    return sorted(path.stem for path in (resource_folder("conf") / group).glob("*.yaml"))


def find_option(group: str, name: str) -> Option | None:
    """Find the option of conf/ of that name; None if there is none."""
    path = resource_folder("conf") / group / f"{name}.yaml"
    return _option(name, path) if path.is_file() else None


def takes_several(group: str) -> bool:
    """True for a group from which a job may have several options, such as benchmark."""
    # The yaml of such an option has its _target_ below a key of its own; the yaml of any other
    # option has it at the top level.
    files = (resource_folder("conf") / group).glob("*.yaml")
    return not any(
        re.search(r"^_target_:", file.read_text(encoding="utf-8"), re.M) for file in files
    )


def options_with_store() -> list[str]:
    """Names of the loaders that read a store."""
    files = sorted((resource_folder("conf") / "loader").glob("*.yaml"))
    return [path.stem for path in files if "/store@store:" in path.read_text(encoding="utf-8")]


def groups() -> list[Group]:
    """All groups of options.

    The groups in the defaults list of conf/config.yaml come first, in the order of the list. Then
    come the other groups, such as store, from which a loader chooses an option.
    """
    text = _config_text()
    chosen = {name: (default, meaning) for name, default, meaning in DEFAULTS_ROW.findall(text)}
    folders = [path.name for path in sorted(resource_folder("conf").iterdir()) if path.is_dir()]
    names = [*chosen, *(name for name in folders if name not in chosen)]
    return [_group(name, *chosen.get(name, ("", STORE_MEANING))) for name in names]


def settings() -> tuple[Setting, ...]:
    """The settings at the top level of conf/config.yaml, which belong to no option."""
    text = _config_text()
    # In the file, these settings are between the defaults list and Hydra's part.
    return _settings(text[text.index("batch_size:") : text.index("\nhydra:")])


def group_names() -> list[str]:
    """Names of the groups from which a command line picks one option."""
    return [group for group, _, _ in DEFAULTS_ROW.findall(_config_text())]


def default_options() -> dict[str, str]:
    """Group -> its default option, for the groups of which every job has an option."""
    defaults = {group: default for group, default, _ in DEFAULTS_ROW.findall(_config_text())}
    return {group: default for group, default in defaults.items() if default != "null"}


def default_of(name: str) -> str:
    """The default of a group or of a setting at the top level."""
    return (default_options() | {setting.name: setting.default for setting in settings()})[name]


def overridable_names() -> list[str]:
    """All names that can be overridden on the command line."""
    names = [setting.name for setting in settings()]
    for group in groups():
        group_names = {setting.name for option in group.options for setting in option.settings}
        names += [group.name, *(f"{group.path}.{name}" for name in sorted(group_names))]
    return names


def tune_settings() -> tuple[Setting, ...]:
    """Settings of `fastloop tune`, which no job has."""
    return _settings(_tune_text().partition("\ntried:")[0])


def tune_space() -> tuple[Setting, ...]:
    """The settings that `fastloop tune` tries unless `space=` names others.

    The `default` of each is the list of the values to try.
    """
    text = _tune_text().partition("\ntried:\n")[2]
    return _settings("\n".join(line.strip() for line in text.splitlines()))


def _tune_text() -> str:
    """The text of conf/tune.yaml."""
    return (resource_folder("conf") / "tune.yaml").read_text(encoding="utf-8")


def _config_text() -> str:
    """The text of conf/config.yaml."""
    return (resource_folder("conf") / "config.yaml").read_text(encoding="utf-8")


def _group(name: str, default: str, meaning: str) -> Group:
    """Read a group from its folder of conf/, or the group `experiment` from experiments/."""
    paths = {path.stem: path for path in sorted((resource_folder("conf") / name).glob("*.yaml"))}
    files = experiment_files() if name == "experiment" else paths
    options = tuple(_option(*item) for item in files.items())
    return Group(name=name, default=default, meaning=meaning, options=options)


def _option(name: str, path: Path) -> Option:
    """Read an option from its file."""
    text = path.read_text(encoding="utf-8")
    meaning = re.match(r"# (.*)\n", text)
    option_settings = _settings(text) if "_target_:" in text else ()
    return Option(name=name, meaning=meaning.group(1) if meaning else "", settings=option_settings)


def _settings(text: str) -> tuple[Setting, ...]:
    """Parse the settings in the text of a file of conf/."""
    return tuple(
        Setting(name=name, default=default.replace(OUTPUTS, "outputs"), meaning=meaning)
        for name, default, meaning in SETTING_LINE.findall(text)
        # `seed: ${seed}` passes on a setting of the top level, and is no setting of the option.
        if name != "_target_" and default != f"${{{name}}}"
    )


# Each job of a sweep needs the defaults of five groups. Without the cache, reading them would take
# a seventh of the time in which a job is composed.
@cache
def option_values(group: str, option: str) -> MappingProxyType[str, Any]:
    """The content of an option's yaml file, with unresolved interpolations.

    Each file is read only once in a process.
    """
    from omegaconf import OmegaConf

    path = resource_folder("conf") / group / f"{option}.yaml"
    values: Any = OmegaConf.to_container(OmegaConf.load(path))
    return MappingProxyType(values)


def names_in_option(group: str, option: str) -> set[str]:
    """All names in a configuration's part for an option: those in the option's yaml, and `store`
    for a loader that reads a store."""
    has_store = group == "loader" and option in options_with_store()
    return {*option_values(group, option), *(["store"] if has_store else [])}


def without_requirements(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an option without its requirements, which are not arguments of its class."""
    return {name: value for name, value in node.items() if name != REQUIREMENTS}
