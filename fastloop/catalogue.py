"""What can be chosen, read from conf/: the text of --help and the README's tables.

`python -m fastloop.catalogue README.md` writes these tables anew.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
BEGIN, END = "<!-- from conf/ by make readme -->", "<!-- end -->"
OUTPUTS = "${oc.env:FASTLOOP_OUTPUTS,outputs}"
WIDTH = 80
STORE = "its loader's choice; store@loader.store=<option> picks another"
OWN = (
    "A Dataset, a loader or a model of your own: dataset._target_=package.module.name, "
    "loader._target_= or model._target_=, "
    "and +dataset.<argument>=value for its arguments; in a yaml of your own folder: -cd folder"
)
LINE = re.compile(r"^(\w+): +(.*?)(?: +# (.*))?$", re.M)
DEFAULT = re.compile(r"^  - (\w+): +(\w+) +# (.*)$", re.M)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A name, its default, and what it means."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """One yaml of a group, with the settings that it brings."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A folder of conf/."""

    name: str
    default: str
    meaning: str
    options: tuple[Option, ...]

    @property
    def path(self) -> str:
        """Where its settings are in the configuration."""
        return "loader.store" if self.name == "store" else self.name


def resource_folder(name: str) -> Path:
    """conf or experiments: beside the package in a checkout, inside it in a wheel."""
    for base in (PACKAGE.parent, PACKAGE):
        if (base / name / ("config.yaml" if name == "conf" else "quickstart.yaml")).is_file():
            return base / name
    raise FileNotFoundError(f"{name}: neither beside {PACKAGE} nor inside it")


def groups() -> list[Group]:
    """Every group in the order of conf/config.yaml, then those that other groups choose from."""
    text = _config_text()
    chosen = {name: (default, meaning) for name, default, meaning in DEFAULT.findall(text)}
    folders = [path.name for path in sorted(resource_folder("conf").iterdir()) if path.is_dir()]
    names = [*chosen, *(name for name in folders if name not in chosen)]
    return [_group(name, *chosen.get(name, ("", STORE))) for name in names]


def settings() -> tuple[Setting, ...]:
    """The settings at the top level."""
    text = _config_text()
    return _settings(text[text.index("batch_size:") : text.index("\nhydra:")])


def default_of(name: str) -> str:
    """The default of a group or of a setting at the top level."""
    defaults = {group: default for group, default, _ in DEFAULT.findall(_config_text())}
    return (defaults | {one.name: one.default for one in settings()})[name]


def known_names() -> list[str]:
    """Every name that may stand before `=` on the command line."""
    found = [one.name for one in settings()]
    for group in groups():
        own = {s.name for option in group.options for s in option.settings}
        found += [group.name, *(f"{group.path}.{name}" for name in sorted(own))]
    return found


def help_text() -> str:
    """Groups with their options and settings, then the top level's, in 80 columns."""
    lines = ["Groups: group=option; with -m also group=a,b and 'group=glob(*)'", ""]
    for group in groups():
        default = f" [{group.default}]" if group.default else ""
        lines += textwrap.wrap(f"{group.name}{default}: {group.meaning}", WIDTH)
        for option in group.options:
            lines += _hung(f"  {option.name}", option.meaning, 24)
            for one in option.settings:
                lines += _hung(f"    {group.path}.{one.name}={one.default}", one.meaning, 48)
        lines.append("")
    lines += ["Settings: setting=value", ""]
    for one in settings():
        lines += _hung(f"  {one.name}={one.default}", one.meaning, 36)
    lines += ["", *textwrap.wrap(OWN, WIDTH)]
    return "\n".join(lines)


def markdown() -> str:
    """The same as tables for the README."""
    lines = ["| group | option | what it is, and its own settings |", "|---|---|---|"]
    for group in groups():
        for option in group.options:
            shown = f"**`{option.name}`**" if option.name == group.default else f"`{option.name}`"
            lines.append(f"| `{group.name}` | {shown} | {_cell(group, option)} |")
    lines += ["", "| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{one.name}` | `{one.default}` | {one.meaning} |" for one in settings()]
    return "\n".join(lines)


def with_tables(readme: str) -> str:
    """The README's text with its tables as conf/ has them now."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{rest.partition(END)[2]}"


def _config_text() -> str:
    return (resource_folder("conf") / "config.yaml").read_text()


def _group(name: str, default: str, meaning: str) -> Group:
    inside = resource_folder("conf") / name
    folder = resource_folder("experiments") if name == "experiment" else inside
    options = tuple(_option(path) for path in sorted(folder.glob("*.yaml")))
    return Group(name=name, default=default, meaning=meaning, options=options)


def _option(path: Path) -> Option:
    text = path.read_text()
    meaning = re.match(r"# (.*)\n", text)
    own = _settings(text) if "_target_:" in text else ()
    return Option(name=path.stem, meaning=meaning.group(1) if meaning else "", settings=own)


def _settings(text: str) -> tuple[Setting, ...]:
    return tuple(
        Setting(name=name, default=default.replace(OUTPUTS, "outputs"), meaning=meaning)
        for name, default, meaning in LINE.findall(text)
        if name != "_target_" and default != f"${{{name}}}"  # that is the top level's own
    )


def _cell(group: Group, option: Option) -> str:
    own = [f"`{group.path}.{one.name}={one.default}` {one.meaning}" for one in option.settings]
    return "<br>".join([option.meaning, *own])


def _hung(label: str, meaning: str, column: int) -> list[str]:
    """The meaning at that column, below the label where the label is longer."""
    indent = " " * column
    if len(label) >= column:
        return [
            label,
            *textwrap.wrap(meaning, WIDTH, initial_indent=indent, subsequent_indent=indent),
        ]
    return textwrap.wrap(
        meaning, WIDTH, initial_indent=label.ljust(column), subsequent_indent=indent
    )


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    readme.write_text(with_tables(readme.read_text()))
