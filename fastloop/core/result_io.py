"""Save results as result.json, and load them, also from files of older fastloop versions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from fastloop.core.atomic_files import write_text
from fastloop.core.explanation import TIMELINE_SVG
from fastloop.core.passwords import without_address_users, without_passwords
from fastloop.core.result import Result
from fastloop.core.text import encodable
from fastloop.core.types import FailureKind, UsageError

RESULT_FILE = "result.json"
"""Name of the file with a job's result, in the job's folder."""

SCHEMA_FILE = Path(__file__).with_name("result.schema.json")
"""The file with the JSON Schema of result.json."""

_adapter = pydantic.TypeAdapter(Result)
"""Converts a Result to JSON and back."""


def schema_text(adapter: pydantic.TypeAdapter[Any] = _adapter) -> str:
    """The text of the JSON Schema of a file; by default of result.json, as in SCHEMA_FILE.

    adapter: pydantic's adapter of the type of the file's content.
    """
    schema = adapter.json_schema(mode="serialization")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=1) + "\n"


def save(result: Result, folder: Path) -> None:
    """Write <folder>/result.json atomically; passwords in addresses and messages are left out."""
    saved = replace(
        result,
        status_reason=_as_message(result.status_reason),
        caveats=[*map(_as_message, result.caveats)],
        skipped=[*map(_as_message, result.skipped)],
        params={
            name: encodable(value) if isinstance(value, str) else value
            for name, value in result.params.items()
        },
    )
    text = _adapter.dump_json(saved, indent=1, by_alias=True).decode()
    write_text(folder / RESULT_FILE, without_address_users(text))


def _as_message(text: str) -> str:
    """The text without passwords, with escapes for characters that UTF-8 can't encode."""
    return encodable(without_passwords(text))


def load(folder: Path) -> Result:
    """Read <folder>/result.json.

    Raises OSError if the file can't be read, and pydantic's ValidationError if it holds no result.
    """
    result = _adapter.validate_json((folder / RESULT_FILE).read_bytes())
    # In files that are older than the field failure_kind, the reason begins with the kind.
    if result.status in ("FAILED", "KILLED") and result.failure_kind is None:
        kinds = (kind for kind in FailureKind if result.status_reason.startswith(f"{kind}: "))
        result = replace(result, failure_kind=next(kinds, FailureKind.ERROR))
    return result


def load_results(folder: Path, setting: str) -> list[Result]:
    """All results in the folder or below, in the order of the jobs.

    Raises UsageError if there is no such folder or no result, or if a file can't be read. setting:
    the word before the folder in the message, such as the name of the setting.
    """
    try:
        is_folder = folder.is_dir()
    # is_dir returns False for a missing path, but raises for a name that is too long.
    except OSError as error:
        raise UsageError(f"{setting}={folder}: {error.strerror}") from error
    if not is_folder:
        raise UsageError(f"{setting}={folder}: no such folder")
    paths = sorted(folder.rglob(RESULT_FILE), key=_natural_order)
    if not paths:
        raise UsageError(f"{setting}={folder}: no {RESULT_FILE} in it or below")
    results: dict[tuple, Result] = {}
    for path in paths:
        result = load_result(path, setting)
        # MLflow's artifacts may lie below the outputs folder, with copies of the same results.
        results.setdefault((result.tags.get("sweep"), result.name), result)
    return list(results.values())


def load_timelines(folder: Path) -> dict[tuple[str | None, str], bytes]:
    """(sweep, name of a job) -> content of timeline.svg, for each explained job in the folder or
    below; a sweep of None is unknown."""
    timelines: dict[tuple[str | None, str], bytes] = {}
    for path in sorted(folder.rglob(TIMELINE_SVG), key=_natural_order):
        if path.is_file() and (path.parent / RESULT_FILE).exists():
            result = load(path.parent)
            timelines.setdefault((result.tags.get("sweep"), result.name), path.read_bytes())
    return timelines


def load_result(path: Path, setting: str) -> Result:
    """Read the result.json in the folder of `path`.

    Raises UsageError if the file can't be read, or is not one of fastloop's. setting: the word
    before the path in the message, such as the name of the setting.
    """
    try:
        return load(path.parent)
    except (pydantic.ValidationError, OSError, UnicodeDecodeError) as error:
        reason = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise UsageError(f"{setting}={path}: can't be read: {reason}") from error


def _natural_order(path: Path) -> tuple:
    """A sort key that compares numbers in a path by value, so that job 10 comes after job 9."""
    pieces = re.split(r"(\d+)", str(path))
    return tuple(int(piece) if piece.isdecimal() else piece for piece in pieces)
