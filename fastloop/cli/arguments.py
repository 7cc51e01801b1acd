"""`name=value` arguments of the commands that do not use Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastloop.core.types import UsageError

CONTROL = re.compile("[\x00-\x1f\x7f]")


def parse_settings(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults, updated with the arguments.

    Raises UsageError for an unknown setting, one that is given twice, and control characters.
    """
    settings, given = dict(defaults), set[str]()
    for argument in arguments:
        # a terminal would execute control characters when an error message prints the argument
        if CONTROL.search(argument):
            raise UsageError(f"{argument!r}: allowed: printable characters")
        name, equals, value = argument.partition("=")
        allowed = "allowed: " + ", ".join(f"{setting}=…" for setting in defaults)
        if not equals:
            raise UsageError(f"{argument}: settings have the form name=value; {allowed}")
        if name not in defaults:
            raise UsageError(f"{argument}: no such setting; {allowed}")
        if name in given:
            raise UsageError(f"{argument}: {name}= is given twice; allowed: once")
        given.add(name)
        settings[name] = str(Path(value).expanduser()) if value.startswith("~/") else value
    return settings
