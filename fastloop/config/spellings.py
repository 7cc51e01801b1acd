"""Further spellings of overrides, rewritten in Hydra's grammar."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastloop.config.catalogue import group_names, options_of
from fastloop.config.user_options import OPTION_METHODS

HOME = re.compile(r"(?<=[=,\[])~[^,\]'\"]*")
"""A value, or one of several values, that begins with the home folder."""
TORCH_NAMES = {"collate_fn": "collate"}
"""torch's name of an option -> its name here."""
PLAIN_PATH = re.compile(r"[\w/.+-]*")
"""A path that needs no quotes in Hydra's grammar."""
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def read_spelling(override: str) -> str:
    """The override in Hydra's grammar.

    ~ becomes the home folder, dataset=mine.A becomes dataset._target_=mine.A, collate_fn, torch's
    name, becomes collate, and +experiment=name, the usual spelling with Hydra, loses its plus.

    >>> read_spelling("dataset=mine.A")
    'dataset._target_=mine.A'
    """
    name, equals, value = override.partition("=")
    if not equals:
        return override
    if name.startswith("+") and name.lstrip("+") in group_names():
        name = name.lstrip("+")
    name = TORCH_NAMES.get(name, name)
    if name in OPTION_METHODS and DOTTED.fullmatch(value) and value not in options_of(name):
        name = f"{name}._target_"
    return HOME.sub(_expand_quoted, f"{name}={value}")


def expand_homes(values: Any) -> Any:
    """Nested values; text that begins with ~/ becomes the path in the home folder."""
    if isinstance(values, dict):
        return {name: expand_homes(value) for name, value in values.items()}
    if isinstance(values, list):
        return [expand_homes(value) for value in values]
    return _expand(values) if isinstance(values, str) and values.startswith("~/") else values


def read_spellings(overrides: Iterable[str]) -> tuple[str, ...]:
    """Each override in Hydra's grammar, see read_spelling."""
    return tuple(read_spelling(override) for override in overrides)


def _expand_quoted(match: re.Match[str]) -> str:
    path = _expand(match[0])
    return path if PLAIN_PATH.fullmatch(path) else f"'{path}'"


def _expand(path: str) -> str:
    try:
        return str(Path(path).expanduser())
    # ~name of a user that does not exist
    except RuntimeError:
        return path
