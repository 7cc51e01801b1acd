"""`key=value` arguments of the commands that need no Hydra, and where results are found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pydantic

from fastloop.refusal import Refused
from fastloop.result import RESULT_FILE, Result, load


def parse(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The settings, with defaults for those that are not given; raises Refused for any other."""
    settings = dict(defaults)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or name not in defaults:
            allowed = ", ".join(f"{one}=…" for one in defaults)
            raise Refused(f"{argument}: no such setting; allowed: {allowed}")
        settings[name] = value
    return settings


def results_below(folder: Path, setting: str) -> list[Result]:
    """Every result in the folder or below, in the order of the jobs; raises Refused for none."""
    if not folder.is_dir():
        raise Refused(f"{setting}={folder}: no such folder")
    paths = sorted(folder.rglob(RESULT_FILE), key=_in_order)
    if not paths:
        raise Refused(f"{setting}={folder}: no {RESULT_FILE} in it or below")
    found: dict[tuple, Result] = {}
    for path in paths:
        result = read(path, setting)
        # MLflow's artifacts lie below the outputs folder too: a copy is not a second job
        found.setdefault((result.tags.get("sweep"), result.name), result)
    return list(found.values())


def read(path: Path, setting: str) -> Result:
    """The result in that file; raises Refused, naming the setting, for a foreign or harmed one."""
    try:
        return load(path.parent)
    except (pydantic.ValidationError, OSError, UnicodeDecodeError) as error:
        what = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise Refused(f"{setting}={path}: can't be read: {what}") from error


def _in_order(path: Path) -> tuple:
    """Job 10 comes after job 9."""
    pieces = re.split(r"(\d+)", str(path))
    return tuple(int(piece) if piece.isdigit() else piece for piece in pieces)
