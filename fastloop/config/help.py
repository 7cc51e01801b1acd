"""The groups, options and settings of conf/: the text of --help and the page docs/options.md.

`python -m fastloop.config.help docs/options.md` writes that page.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
PAGE = """<!-- Generated from conf/ by `make docs`; edit the comments there. -->
# Options

A command line picks one option of each group, `group=option`, and changes settings, `setting=value`
or `group.setting=value`. With `-m` a comma-separated list, `range(1,5)` or `'glob(*)'` sweeps over
several values. `python -m fastloop.run --help` prints these tables, `--cfg job` the configuration
of one command line.
"""
OUTPUTS = "${oc.env:FASTLOOP_OUTPUTS,outputs}"
WIDTH = 80
STORE = "chosen by the loader; store@loader.store=<option> picks another"
USER_CODE = (
    "A Dataset, a loader, a model, a collate or a transform of your own: "
    "dataset._target_=package.module.name, loader._target_=, model._target_= and so on, "
    "and +dataset.<argument>=value for its arguments; in a yaml of your own folder: -cd folder"
)
LINE = re.compile(r"^(\w+): +(.*?)(?: +# (.*))?$", re.M)
DEFAULT = re.compile(r"^  - (\w+): +(\w+) +# (.*)$", re.M)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Name, default and meaning of a setting."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option of a group, read from its yaml, with its settings."""

    name: str
    meaning: str
    settings: tuple[Setting, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of options, read from a folder of conf/."""

    name: str
    default: str
    meaning: str
    options: tuple[Option, ...]

    @property
    def path(self) -> str:
        """Dotted path of the group in the configuration."""
        return "loader.store" if self.name == "store" else self.name


def resource_folder(name: str) -> Path:
    """The folder conf or experiments: next to the package, or in its resources/ in a wheel."""
    file = "config.yaml" if name == "conf" else "quickstart/sweep.yaml"
    for base in (PACKAGE.parent, PACKAGE / "resources"):
        if (base / name / file).is_file():
            return base / name
    raise FileNotFoundError(f"{name}: neither next to {PACKAGE} nor in its resources/")


def experiment_files() -> dict[str, Path]:
    """The yaml of each sweep by the <name> of experiment=<name>.

    experiments/<question>/sweep.yaml is <question>; a further sweep of that question,
    experiments/<question>/<sweep>.yaml, is <question>_<sweep>.
    """
    paths = resource_folder("experiments").glob("*/*.yaml")
    names = {path: f"{path.parent.name}_{path.stem}".removesuffix("_sweep") for path in paths}
    return {name: path for path, name in sorted(names.items(), key=lambda pair: pair[1])}


def options_of(group: str) -> list[str]:
    """Names of a group's options."""
    return sorted(path.stem for path in (resource_folder("conf") / group).glob("*.yaml"))


def takes_several(group: str) -> bool:
    """True for a group of which a job may have several options: each has a key of its own."""
    files = (resource_folder("conf") / group).glob("*.yaml")
    return not any(re.search(r"^_target_:", file.read_text(), re.M) for file in files)


def groups() -> list[Group]:
    """All groups: those of conf/config.yaml in its order, then those that options choose from."""
    text = _config_text()
    chosen = {name: (default, meaning) for name, default, meaning in DEFAULT.findall(text)}
    folders = [path.name for path in sorted(resource_folder("conf").iterdir()) if path.is_dir()]
    names = [*chosen, *(name for name in folders if name not in chosen)]
    return [_group(name, *chosen.get(name, ("", STORE))) for name in names]


def settings() -> tuple[Setting, ...]:
    """Settings at the top level."""
    text = _config_text()
    return _settings(text[text.index("batch_size:") : text.index("\nhydra:")])


def default_options() -> dict[str, str]:
    """The default option of each group from which every job has one."""
    defaults = {group: default for group, default, _ in DEFAULT.findall(_config_text())}
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


def help_text() -> str:
    """Groups with their options and settings, then the top-level settings; 80 columns wide."""
    lines = ["Groups: group=option; with -m also group=a,b and 'group=glob(*)'", ""]
    for group in groups():
        default = f" [{group.default}]" if group.default else ""
        lines += textwrap.wrap(f"{group.name}{default}: {group.meaning}", WIDTH)
        for option in group.options:
            lines += _hanging_lines(f"  {option.name}", option.meaning, 24)
            for setting in option.settings:
                label = f"    {group.path}.{setting.name}={setting.default}"
                lines += _hanging_lines(label, setting.meaning, 48)
        lines.append("")
    lines += ["Settings: setting=value", ""]
    for setting in settings():
        lines += _hanging_lines(f"  {setting.name}={setting.default}", setting.meaning, 36)
    lines += ["", *textwrap.wrap(USER_CODE, WIDTH)]
    return "\n".join(lines)


def options_page() -> str:
    """docs/options.md: the top-level settings, then each group with its options' settings."""
    lines = [PAGE, "## Settings", "", "| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{s.name}` | `{s.default}` | {_escape(s.meaning)} |" for s in settings()]
    lines += _tune_tables()
    for group in groups():
        default = f" Default: `{group.default}`." if group.default not in ("", "null") else ""
        meaning = _escape(group.meaning[0].upper() + group.meaning[1:])
        lines += ["", f"## {group.name}", "", f"{meaning}.{default}"]
        lines += ["", "| option | description |", "|---|---|"]
        lines += [
            f"| {_label(group, option)} | {_escape(option.meaning)} |" for option in group.options
        ]
        lines += _group_settings(group)
    return "\n".join([*lines, ""])


def tune_settings() -> tuple[Setting, ...]:
    """Settings of `fastloop tune`, which no job has."""
    return _settings(_tune_text().partition("\ntried:")[0])


def tune_space() -> tuple[Setting, ...]:
    """The settings that `fastloop tune` tries by itself, with their values as default."""
    text = _tune_text().partition("\ntried:\n")[2]
    return _settings("\n".join(line.strip() for line in text.splitlines()))


def _tune_tables() -> list[str]:
    """Tables of the settings of `fastloop tune`, and of what it tries."""
    lines = ["", "## tune", "", "Settings of `fastloop tune`, see [Tuning](tuning.md).", ""]
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{s.name}` | `{s.default}` | {_escape(s.meaning)} |" for s in tune_settings()]
    lines += ["", "What it tries where `space=` does not say otherwise:", ""]
    lines += ["| setting | values | meaning |", "|---|---|---|"]
    return lines + [f"| `{s.name}` | `{s.default}` | {_escape(s.meaning)} |" for s in tune_space()]


def _tune_text() -> str:
    return (resource_folder("conf") / "tune.yaml").read_text()


def _config_text() -> str:
    return (resource_folder("conf") / "config.yaml").read_text()


def _group(name: str, default: str, meaning: str) -> Group:
    paths = {path.stem: path for path in sorted((resource_folder("conf") / name).glob("*.yaml"))}
    files = experiment_files() if name == "experiment" else paths
    options = tuple(_option(*item) for item in files.items())
    return Group(name=name, default=default, meaning=meaning, options=options)


def _option(name: str, path: Path) -> Option:
    text = path.read_text()
    meaning = re.match(r"# (.*)\n", text)
    option_settings = _settings(text) if "_target_:" in text else ()
    return Option(name=name, meaning=meaning.group(1) if meaning else "", settings=option_settings)


def _settings(text: str) -> tuple[Setting, ...]:
    return tuple(
        Setting(name=name, default=default.replace(OUTPUTS, "outputs"), meaning=meaning)
        for name, default, meaning in LINE.findall(text)
        if name != "_target_" and default != f"${{{name}}}"  # a top-level setting
    )


def _label(group: Group, option: Option) -> str:
    """The option's name; an experiment's links to its report."""
    if group.name != "experiment":
        return f"`{option.name}`"
    return (
        f"[`{option.name}`](../experiments/{experiment_files()[option.name].parent.name}/README.md)"
    )


def _group_settings(group: Group) -> list[str]:
    """A table of the options' settings; one that several options share is listed once."""
    options: dict[Setting, list[str]] = {}
    for option in group.options:
        for setting in option.settings:
            options.setdefault(setting, []).append(f"`{option.name}`")
    rows = [
        f"| `{group.path}.{setting.name}` | {', '.join(names)} | `{setting.default}` "
        f"| {_escape(setting.meaning)} |"
        for setting, names in options.items()
    ]
    return (
        ["", "| setting | options | default | meaning |", "|---|---|---|---|", *rows]
        if rows
        else []
    )


def _escape(text: str) -> str:
    """The text with the characters escaped that Markdown would take for markup."""
    return re.sub(r"[\\<*|]|(?<![a-z\d])_|_(?![a-z\d])", r"\\\g<0>", text)


def _hanging_lines(label: str, meaning: str, column: int) -> list[str]:
    """The label, and the meaning wrapped at `column`, below the label if that is longer."""
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
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m fastloop.config.help docs/options.md")
    Path(sys.argv[1]).write_text(options_page())
