"""Write the text of --help and the page docs/options.md, from the catalogue of conf/.

`python -m fastloop.config.help docs/options.md` writes that page.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from fastloop.config.catalogue import (
    Group,
    Option,
    Setting,
    groups,
    settings,
    tune_settings,
    tune_space,
)

PAGE = """<!-- Generated from conf/ by `make docs`; edit the comments there. -->
# Options

A command line picks one option of each group, `group=option`, and changes settings, `setting=value`
or `group.setting=value`. With `-m` a comma-separated list, `range(1,5)` or `'glob(*)'` sweeps over
several values. `fastloop list <group>` prints these tables, `--cfg job` the configuration of one
command line.
"""
WIDTH = 80
USER_CODE = (
    "A Dataset, a loader, a model, a collate or a transform of your own: "
    "dataset._target_=package.module.name, loader._target_=, model._target_= and so on, "
    "and +dataset.<argument>=value for its arguments; in a yaml of your own folder: -cd folder"
)


def help_text() -> str:
    """Groups with the names of their options, then the top-level settings; 80 columns wide."""
    lines = ["Groups: group=option; with -m also group=a,b and 'group=glob(*)'", ""]
    for group in groups():
        default = f" [{group.default}]" if group.default not in ("", "null") else ""
        lines += textwrap.wrap(f"{group.name}{default}: {group.meaning}", WIDTH)
        names = ", ".join(option.name for option in group.options)
        lines += textwrap.wrap(names, WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", "fastloop list <group> describes the options of a group."]
    return "\n".join([*lines, "", *setting_lines(), "", *textwrap.wrap(USER_CODE, WIDTH)])


def all_text() -> str:
    """Groups with their options and settings, then the top-level settings; 80 columns wide."""
    lines = ["Groups: group=option; with -m also group=a,b and 'group=glob(*)'", ""]
    for group in groups():
        default = f" [{group.default}]" if group.default else ""
        lines += textwrap.wrap(f"{group.name}{default}: {group.meaning}", WIDTH)
        for option in group.options:
            lines += hanging_lines(f"  {option.name}", option.meaning, 24)
            for setting in option.settings:
                label = f"    {group.path}.{setting.name}={setting.default}"
                lines += hanging_lines(label, setting.meaning, 48)
        lines.append("")
    return "\n".join([*lines, *setting_lines(), "", *textwrap.wrap(USER_CODE, WIDTH)])


def setting_lines() -> list[str]:
    """The settings that belong to no option, with their meanings."""
    lines = ["Settings: setting=value", ""]
    for setting in settings():
        lines += hanging_lines(f"  {setting.name}={setting.default}", setting.meaning, 36)
    return lines


def options_page() -> str:
    """docs/options.md: the top-level settings and those of tune, then each group with its options
    and their settings."""
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


def _tune_tables() -> list[str]:
    """Tables of the settings of `fastloop tune`, and of the values that it tries."""
    lines = ["", "## tune", "", "Settings of `fastloop tune`, see [Tuning](tuning.md).", ""]
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{s.name}` | `{s.default}` | {_escape(s.meaning)} |" for s in tune_settings()]
    lines += ["", "The values that it tries unless `space=` says otherwise:", ""]
    lines += ["| setting | values | meaning |", "|---|---|---|"]
    return lines + [f"| `{s.name}` | `{s.default}` | {_escape(s.meaning)} |" for s in tune_space()]


def _label(group: Group, option: Option) -> str:
    """The option's name; the name of an experiment is a link to its report."""
    if group.name != "experiment":
        return f"`{option.name}`"
    return f"[`{option.name}`](../experiments/{option.path.parent.name}/README.md)"


def _group_settings(group: Group) -> list[str]:
    """A table of the options' settings; a setting that several options share is one row."""
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
    # An underscore inside of a word is not markup.
    return re.sub(r"[\\<*|]|(?<![a-z\d])_|_(?![a-z\d])", r"\\\g<0>", text)


def hanging_lines(label: str, meaning: str, column: int) -> list[str]:
    """The label, and the meaning in a column of its own that begins at `column`.

    If the label is too long for that, the meaning begins on the next line.
    """
    indent = " " * column
    if len(label) >= column:
        return [
            # A default may be a long list.
            *textwrap.wrap(label, WIDTH, subsequent_indent=indent, break_on_hyphens=False),
            *textwrap.wrap(meaning, WIDTH, initial_indent=indent, subsequent_indent=indent),
        ]
    return textwrap.wrap(
        meaning, WIDTH, initial_indent=label.ljust(column), subsequent_indent=indent
    )


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m fastloop.config.help docs/options.md")
    Path(sys.argv[1]).write_text(options_page(), encoding="utf-8")
