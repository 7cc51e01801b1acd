"""Folders that are written once, atomically, and verified before they are read.

The seal of a folder, `sealed.json`, holds the fingerprint of the content, a digest of the size and
of the first and last MiB of every file, and a checksum of every whole file. A folder is written
again if it has no seal, if it does not match its seal, or if its seal has another fingerprint than
the expected one. Checksums are compared only on request, or after a loader has delivered other
samples than the dataset's, because this reads the whole folder.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastloop.core.atomic_files import flush_to_disk, hold_lock, write_beside
from fastloop.core.fingerprints import edge_digest
from fastloop.core.spans import now_ns, seconds_between

SEAL = "sealed.json"
"""Name of the file with the seal."""
Facts = dict[str, Any]
"""The content of a seal: facts about the data, the fingerprint, digests and checksums."""


def write_once(
    folder: Path, expected: str, write: Callable[[Path], Facts], compares_checksums: bool = False
) -> Facts:
    """Write a folder unless it is intact and as expected; returns the facts in its seal.

    expected: fingerprint of the content. write: writes the content to an empty folder, and returns
    facts about it. compares_checksums: read all files to compare their checksums as well, and print
    a line if they differ. Other processes that call this function for the folder wait.
    """
    with hold_lock(folder):
        facts = read_seal(folder, expected)
        if facts is not None and compares_checksums and (damage := _damage(folder, facts)):
            print(f"{folder}: {damage}; it is written again", file=sys.stderr)
            facts = None
        if facts is None:
            with write_beside(folder) as beside:
                beside.mkdir()
                start_ns = now_ns()
                facts = write(beside) | {"fingerprint": expected}
                _seal(beside, facts, start_ns)
    return facts


def break_seal_if_damaged(folder: Path) -> str:
    """The reason why the folder does not match its seal; empty if it does.

    A seal that does not match is removed, so that the next command writes the folder again.
    """
    with hold_lock(folder):
        facts = read_seal(folder)
        damage = "its seal is broken" if facts is None else _damage(folder, facts)
        if damage:
            (folder / SEAL).unlink(missing_ok=True)
    return damage


def _seal(folder: Path, facts: Facts, start_ns: int) -> None:
    """Write the seal of a complete folder, and add its seconds, size and digests to the facts.

    start_ns: clock value, in nanoseconds, at which writing the folder began.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # All data has to be on disk before a rename makes the folder visible. Otherwise a sealed folder
    # might be empty after a power failure, and a later write-back might disturb a measurement.
    for path in files:
        flush_to_disk(path)
    facts["seconds"] = seconds_between(start_ns, now_ns())
    facts["disk_mib"] = sum(path.stat().st_size for path in files) / 2**20
    facts["files"] = {str(path.relative_to(folder)): edge_digest(path) for path in files}
    facts["checksums"] = {str(path.relative_to(folder)): _checksum(path) for path in files}
    (folder / SEAL).write_text(json.dumps(facts, indent=1))


def read_seal(folder: Path, expected: str | None = None) -> Facts | None:
    """The facts in a folder's seal; None if the folder is not intact or has another fingerprint.

    expected: the fingerprint; None: any fingerprint will do.
    """
    try:
        facts = json.loads((folder / SEAL).read_text())
        files = facts["files"].items()
        is_intact = all(edge_digest(folder / name) == digest for name, digest in files)
        return facts if is_intact and expected in (None, facts["fingerprint"]) else None
    # A file of the folder is missing, or the seal is not JSON of this form.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _damage(folder: Path, facts: Facts) -> str:
    """The reason why the files do not match the checksums in the facts; empty if they do."""
    checksums = facts.get("checksums")
    if checksums is None:
        return "an earlier version has sealed it without checksums"
    try:
        is_intact = all(
            _checksum(folder / name) == checksum for name, checksum in checksums.items()
        )
    except OSError as error:
        return str(error)
    return "" if is_intact else "its files have changed since they were written"


def _checksum(path: Path) -> str:
    """32 hexadecimal digits of the BLAKE2b digest of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
