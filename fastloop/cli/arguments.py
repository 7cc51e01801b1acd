"""Parse the `name=value` arguments of commands that do not use Hydra."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fastloop.core.types import UsageError

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys instead of printing them."""


def parse_settings(
    arguments: Sequence[str], defaults: Mapping[str, str], *, may_be_empty: bool = True
) -> dict[str, str]:
    """Parse the arguments into name -> value, with defaults for settings that are not given.

    may_be_empty: False to refuse empty values, such as the value of an unset shell variable.
    Raises UsageError for a refused empty value, an unknown setting, a setting that is given twice,
    and control characters.
    """
    settings = dict(defaults)
    given = set[str]()
    for argument in arguments:
        # A terminal would execute control characters when an error message prints the argument.
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
        if not value.strip() and not may_be_empty:
            raise UsageError(f"{argument}: it is empty; allowed: a value, or no {name}=")
        given.add(name)
        settings[name] = _expand_home(value)
    return settings


def _expand_home(value: str) -> str:
    """The value, with ~/ at its beginning replaced by the home folder, if there is one."""
    # The user may have no home folder.
    with suppress(RuntimeError):
        return str(Path(value).expanduser()) if value.startswith("~/") else value
    return value


def parse_percent(name: str, text: str) -> float:
    """Parse a percentage, the value of the setting with that name.

    Raises UsageError unless the percentage is finite and at least 0.
    """
    try:
        # float() also accepts the digits of other scripts, which are a typing error here.
        percent = float(text) if text.isascii() else math.nan
    except ValueError:
        percent = math.nan
    if not 0 <= percent < math.inf:
        raise UsageError(f"{name}={text}: allowed: a percentage, 0 or more")
    return percent
