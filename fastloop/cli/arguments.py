"""`name=value` arguments of the commands that do not use Hydra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastloop.core.types import UsageError


def parse_settings(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults, updated with the arguments. Raises UsageError for an unknown setting."""
    settings = dict(defaults)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        allowed = "allowed: " + ", ".join(f"{setting}=…" for setting in defaults)
        if not equals:
            raise UsageError(f"{argument}: settings have the form name=value; {allowed}")
        if name not in defaults:
            raise UsageError(f"{argument}: no such setting; {allowed}")
        settings[name] = value
    return settings
