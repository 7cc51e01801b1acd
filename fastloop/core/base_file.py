"""The results that later ones are checked against, in one file that a repository can hold."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pydantic

from fastloop.core.files import write_text
from fastloop.core.passwords import without_passwords
from fastloop.core.result import Result
from fastloop.core.types import UsageError

_adapter = pydantic.TypeAdapter(list[Result])


def save_base(results: Sequence[Result], path: Path) -> None:
    """Write the results with all of their trials, without the parts that `load_base` never
    compares."""
    # the file is meant for a user's repository: explanations and spans would make it large
    kept = [replace(each, attribution={}, explanation=None, rounds=[]) for each in results]
    write_text(path, without_passwords(_adapter.dump_json(kept, indent=1).decode()) + "\n")


def check_base_path(path: Path) -> None:
    """Raise UsageError if no base can be written at the path, without writing anything."""
    # The folders above the file are made when it is written, so the nearest one that exists has to
    # be writable. Making a file finds read-only mounts and quotas, which permissions do not show.
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        nearest = next(each for each in path.absolute().parents if each.exists())
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        allowed = "allowed: the path of a file that can be written"
        raise UsageError(f"base: {path}: {error.strerror}; {allowed}") from error


def load_base(path: Path) -> dict[str, Result]:
    """The recorded results by name. Raises UsageError if there are none."""
    hint = "fastloop check record=true records it"
    try:
        results = _adapter.validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(f"base: {path}: no such file; {hint}") from error
    except (pydantic.ValidationError, OSError) as error:
        reason = "not one of fastloop's" if isinstance(error, ValueError) else str(error)
        raise UsageError(f"base: {path}: can't be read: {reason}; {hint}") from error
    if not results:
        raise UsageError(f"base: {path}: it holds no job; {hint}")
    return {each.name: each for each in results}
