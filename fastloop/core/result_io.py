"""Save results as result.json, atomically, and load them, also files of older fastloop versions."""

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

SCHEMA_FILE = Path(__file__).with_name("result.schema.json")

_adapter = pydantic.TypeAdapter(Result)


def schema_text(adapter: pydantic.TypeAdapter[Any] = _adapter) -> str:
    """The JSON Schema of a file, by default of result.json; result.schema.json contains the latter.

    adapter: the type of the file's content.
    """
    schema = adapter.json_schema(mode="serialization")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=1) + "\n"


def save(result: Result, folder: Path) -> None:
    """Write <folder>/result.json atomically, without the passwords of addresses and messages."""
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
    return encodable(without_passwords(text))


def load(folder: Path) -> Result:
    """Read <folder>/result.json; raises pydantic's ValidationError for any other file."""
    result = _adapter.validate_json((folder / RESULT_FILE).read_bytes())
    # A file without failure_kind is older than this field, but its reason begins with the kind.
    if result.status in ("FAILED", "KILLED") and result.failure_kind is None:
        kinds = (kind for kind in FailureKind if result.status_reason.startswith(f"{kind}: "))
        result = replace(result, failure_kind=next(kinds, FailureKind.ERROR))
    return result


def load_results(folder: Path, setting: str) -> list[Result]:
    """All results in the folder or below, in the order of the jobs.

    Raises UsageError, naming the setting, if there is none or one can't be read.
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
    """The content of timeline.svg of each explained job in the folder or below, by the job's sweep
    and name."""
    timelines: dict[tuple[str | None, str], bytes] = {}
    for path in sorted(folder.rglob(TIMELINE_SVG), key=_natural_order):
        if path.is_file() and (path.parent / RESULT_FILE).exists():
            result = load(path.parent)
            timelines.setdefault((result.tags.get("sweep"), result.name), path.read_bytes())
    return timelines


def load_result(path: Path, setting: str) -> Result:
    """Read the result.json in the folder of `path`; raises UsageError, naming the setting, if it is
    damaged, or not one of fastloop's."""
    try:
        return load(path.parent)
    except (pydantic.ValidationError, OSError, UnicodeDecodeError) as error:
        reason = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise UsageError(f"{setting}={path}: can't be read: {reason}") from error


def _natural_order(path: Path) -> tuple:
    """Sort key by which job 10 comes after job 9."""
    pieces = re.split(r"(\d+)", str(path))
    return tuple(int(piece) if piece.isdecimal() else piece for piece in pieces)
