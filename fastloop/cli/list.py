"""fastloop list: the groups of options, the options of a group, or the settings of an option.

    fastloop list [<group> | <group>=<option> | settings | all]
    fastloop list                  all groups
    fastloop list loader           the options of a group
    fastloop list loader=fastloop  the settings of an option
    fastloop list settings         the settings at the top level
    fastloop list all              everything

The command line chooses an option by group=option, and sets a setting by setting=value.
"""

from __future__ import annotations

import sys

from fastloop.config.catalogue import Group, Option, groups
from fastloop.config.help import all_text, hanging_lines, setting_lines
from fastloop.config.suggestions import option_hint
from fastloop.core.similar_names import closest_name, suggest

SETTINGS, ALL = "settings", "all"


def main() -> None:
    """Print the list; exits with 1 and one line for an unknown name."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(__doc__, end="")
        return
    if len(arguments) > 1:
        sys.exit(f"list: {' '.join(arguments)}: allowed: one argument")
    print("\n".join(_lines(arguments[0] if arguments else "")))


def _lines(name: str) -> list[str]:
    """The lines of the list with that name, an argument of the command; empty: all groups."""
    if not name:
        return _group_lines()
    if name == SETTINGS:
        return setting_lines()
    if name == ALL:
        return all_text().splitlines()
    group_name, _, option_name = name.partition("=")
    group = _find_group(group_name)
    if option_name:
        return _option_lines(group, _find_option(group, option_name))
    default = f" (default: {group.default})" if group.default not in ("", "null") else ""
    lines = [f"{group.name}: {group.meaning}{default}", ""]
    for option in group.options:
        lines += hanging_lines(f"  {option.name}", option.meaning, 24)
    with_settings = [option.name for option in group.options if option.settings]
    if with_settings:
        example = f"fastloop list {group.name}={with_settings[0]}"
        lines += ["", f"{example} lists the settings of that option"]
    return lines


def _group_lines() -> list[str]:
    """A line for each group, with its number of options and its default."""
    lines = []
    for group in groups():
        count = f"{len(group.options)} options" if len(group.options) > 1 else "1 option"
        default = f", {group.default} by default" if group.default not in ("", "null") else ""
        lines += hanging_lines(f"  {group.name}", f"{group.meaning} ({count}{default})", 16)
    example = "fastloop list loader lists the options of a group,"
    return [*lines, "", example, "fastloop list settings those settings that belong to no option"]


def _option_lines(group: Group, option: Option) -> list[str]:
    """The meaning of an option, and a line for each of its settings."""
    lines = hanging_lines(f"{group.name}={option.name}", option.meaning, 24)
    for setting in option.settings:
        lines += hanging_lines(
            f"  {group.path}.{setting.name}={setting.default}", setting.meaning, 36
        )
    return lines if option.settings else [*lines, "  no settings"]


def _find_group(name: str) -> Group:
    """Find the group of that name; `loaders` is `loader`. Exits with 1 for an unknown name."""
    found = {group.name: group for group in groups()}
    wanted = name if name in found else name.removesuffix("s")
    if wanted not in found:
        names = [*found, SETTINGS, ALL]
        hint = suggest(closest_name(name, names))
        meant = f"{hint} " if hint else ""
        sys.exit(f"list {name}: no such group; {meant}allowed: {', '.join(names)}")
    return found[wanted]


def _find_option(group: Group, name: str) -> Option:
    """Find the option of that name; exits with 1 for an unknown name."""
    found = {option.name: option for option in group.options}
    if name not in found:
        hint = option_hint(group.name, name, [*found])
        meant = f"{hint} " if hint else ""
        sys.exit(
            f"list {group.name}={name}: no such option; {meant}allowed: {', '.join(sorted(found))}"
        )
    return found[name]
