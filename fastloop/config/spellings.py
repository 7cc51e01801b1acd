"""Spellings of an override that mean one which Hydra's grammar has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastloop.config.catalogue import group_names, options_of
from fastloop.config.user_options import OPTION_METHODS

HOME = re.compile(r"(?<=[=,\[])~[^,\]'\"]*")
"""A value, or one of several, that begins with the home folder."""
PLAIN_PATH = re.compile(r"[\w/.+-]*")
"""A path that needs no quotes in Hydra's grammar."""
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def read_spelling(override: str) -> str:
    """The override with ~ as the home folder, dataset=mine.A as dataset._target_=mine.A,
    and +experiment=name, Hydra's usual spelling, without its plus."""
    name, equals, value = override.partition("=")
    if not equals:
        return override
    if name.startswith("+") and name.lstrip("+") in group_names():
        name = name.lstrip("+")
    if name in OPTION_METHODS and DOTTED.fullmatch(value) and value not in options_of(name):
        name = f"{name}._target_"
    return HOME.sub(_expand_quoted, f"{name}={value}")


def expand_homes(values: Any) -> Any:
    """Nested values in which text that begins with ~/ is the path in the home folder."""
    if isinstance(values, dict):
        return {name: expand_homes(value) for name, value in values.items()}
    if isinstance(values, list):
        return [expand_homes(value) for value in values]
    return _expand(values) if isinstance(values, str) and values.startswith("~/") else values


def read_spellings(overrides: Iterable[str]) -> tuple[str, ...]:
    """Each override as read_spelling reads it."""
    return tuple(read_spelling(override) for override in overrides)


def _expand_quoted(match: re.Match[str]) -> str:
    path = _expand(match[0])
    return path if PLAIN_PATH.fullmatch(path) else f"'{path}'"


def _expand(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    except RuntimeError:  # there is no such user
        return path
