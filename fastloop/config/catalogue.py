"""List the groups, options and settings of conf/, with their defaults and meanings.

A group is a folder of conf/, and an option is a yaml file in the folder. A meaning is a comment in
a yaml file. --help, `fastloop list` and messages show these lists. A process reads the groups and
the settings once.
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
DEFAULTS_ROW = re.compile(r"^  - (\w+): +(\w+) +# (.*)$", re.M)
"""Pattern of a row of the defaults list in conf/config.yaml: group, option and meaning."""
OWN_PATH = "your own "
"""Beginning of the meaning of a dataset's setting if the setting is the path of the user's own
files. The files have to exist. If the path may be null, the meaning also has `null: ...`."""
REQUIREMENTS = "requirements"
"""Name of a setting with arguments of pip install. Options of several groups accept this setting,
even if their yaml files do not list it."""


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
    path: Path
    """The option's yaml file."""
    meaning: str
    """The comment in the first line of the file; empty if there is none."""
    settings: tuple[Setting, ...]
    """The settings of the option; empty if the file names no class (`_target_`)."""
    reads_store: bool
    """True for a loader that reads a store."""


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


@cache
def groups() -> tuple[Group, ...]:
    """All groups of options.

    The groups in the defaults list of conf/config.yaml come first, in the order of the list. Then
    come the other groups, such as store, from which a loader chooses an option.
    """
    rows = DEFAULTS_ROW.findall(_read_conf("config.yaml"))
    chosen = {name: (default, meaning) for name, default, meaning in rows}
    folders = [path.name for path in sorted(resource_folder("conf").iterdir()) if path.is_dir()]
    names = [*chosen, *(name for name in folders if name not in chosen)]
    return tuple(_read_group(name, *chosen.get(name, ("", STORE_MEANING))) for name in names)


@cache
def settings() -> tuple[Setting, ...]:
    """The settings at the top level of conf/config.yaml, which belong to no option."""
    text = _read_conf("config.yaml")
    # In the file, these settings are between the defaults list and Hydra's part.
    return _parse_settings(text[text.index("batch_size:") : text.index("\nhydra:")])


@cache
def setting_names() -> tuple[str, ...]:
    """Names of the settings at the top level."""
    return tuple(setting.name for setting in settings())


def find_group(name: str) -> Group | None:
    """Find the group of that name; None if there is none."""
    return next((group for group in groups() if group.name == name), None)


def find_option(group: str, name: str) -> Option | None:
    """Find the option of that name in a group; None if there is none."""
    found = find_group(group)
    options = found.options if found else ()
    return next((option for option in options if option.name == name), None)


def options_of(group: str) -> list[str]:
    """Names of a group's options, sorted; empty if there is no such group."""
    found = find_group(group)
    return [option.name for option in found.options] if found else []


def options_with_store() -> list[str]:
    """Names of the loaders that read a store."""
    return [option.name for group in groups() for option in group.options if option.reads_store]


def group_names() -> list[str]:
    """Names of the groups from which a command line picks one option."""
    return [group.name for group in groups() if group.default]


def default_options() -> dict[str, str]:
    """Group -> its default option, for the groups of which every job has an option."""
    return {group.name: group.default for group in groups() if group.default not in ("", "null")}


def overridable_names() -> list[str]:
    """All names that can be overridden on the command line."""
    names = [*setting_names()]
    for group in groups():
        of_group = {setting.name for option in group.options for setting in option.settings}
        names += [group.name, *(f"{group.path}.{name}" for name in sorted(of_group))]
    return names


def tune_settings() -> tuple[Setting, ...]:
    """Settings of `fastloop tune`, which no job has."""
    return _parse_settings(_read_conf("tune.yaml").partition("\ntried:")[0])


def tune_space() -> tuple[Setting, ...]:
    """The settings that `fastloop tune` tries unless `space=` names others.

    The `default` of each is the list of the values to try.
    """
    text = _read_conf("tune.yaml").partition("\ntried:\n")[2]
    return _parse_settings("\n".join(line.strip() for line in text.splitlines()))


@cache
def _read_conf(name: str) -> str:
    """The text of a file of conf/."""
    return (resource_folder("conf") / name).read_text(encoding="utf-8")


def _read_group(name: str, default: str, meaning: str) -> Group:
    """Read a group from its folder of conf/, or the group `experiment` from experiments/."""
    paths = sorted((resource_folder("conf") / name).glob("*.yaml"))
    files = experiment_files() if name == "experiment" else {path.stem: path for path in paths}
    options = tuple(_read_option(*item) for item in files.items())
    return Group(name=name, default=default, meaning=meaning, options=options)


def _read_option(name: str, path: Path) -> Option:
    """Read an option from its file."""
    text = path.read_text(encoding="utf-8")
    meaning = re.match(r"# (.*)\n", text)
    return Option(
        name=name,
        path=path,
        meaning=meaning.group(1) if meaning else "",
        settings=_parse_settings(text) if "_target_:" in text else (),
        reads_store="/store@store:" in text,
    )


def _parse_settings(text: str) -> tuple[Setting, ...]:
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
    """The content of the yaml file of an option that exists, with unresolved interpolations."""
    from omegaconf import OmegaConf

    found = find_option(group, option)
    assert found is not None
    values: Any = OmegaConf.to_container(OmegaConf.load(found.path))
    return MappingProxyType(values)


def takes_several(group: str) -> bool:
    """True if a job may have several options of the group, as of benchmark."""
    # The yaml of such an option has its _target_ below a key of its own; the yaml of any other
    # option has it at the top level.
    return not any("_target_" in option_values(group, option) for option in options_of(group))


def names_in_option(group: str, option: str) -> set[str]:
    """All names in a configuration's part for an option: those in the option's yaml, and `store`
    for a loader that reads a store."""
    found = find_option(group, option)
    return {*option_values(group, option), *(["store"] if found and found.reads_store else [])}


def without_requirements(node: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an option without its requirements, which are not arguments of its class."""
    return {name: value for name, value in node.items() if name != REQUIREMENTS}
