"""Folders that are written once, atomically, and verified before they are read.

The seal of a folder, `sealed.json`, holds the fingerprint of what was written and a digest of every
file's size, first and last MiB. A folder that has no seal or does not match it is written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastloop.core.files import (
    edge_digest,
    flush_to_disk,
    hold_lock,
    write_beside,
)
from fastloop.core.spans import now_ns, seconds_between

SEAL = "sealed.json"
Facts = dict[str, Any]


def write_once(folder: Path, expected: str, write: Callable[[Path], Facts]) -> Facts:
    """Write a folder unless it is intact and as expected; returns the facts in its seal.

    expected: fingerprint of what `write` writes. Other processes wait meanwhile.
    """
    with hold_lock(folder):
        facts = read_seal(folder, expected)
        if facts is None:
            with write_beside(folder) as beside:
                beside.mkdir()
                start_ns = now_ns()
                facts = write(beside) | {"fingerprint": expected}
                _seal(beside, facts, start_ns)
    return facts


def _seal(folder: Path, facts: Facts, start_ns: int) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in files:
        flush_to_disk(path)  # before the rename; also, no write-back may disturb a measurement
    facts["seconds"] = seconds_between(start_ns, now_ns())
    facts["disk_mib"] = sum(path.stat().st_size for path in files) / 2**20
    facts["files"] = {str(path.relative_to(folder)): edge_digest(path) for path in files}
    (folder / SEAL).write_text(json.dumps(facts, indent=1))


def read_seal(folder: Path, expected: str | None = None) -> Facts | None:
    """The facts in a folder's seal; None unless it is intact and has the expected fingerprint.

    expected: None: any fingerprint.
    """
    try:
        facts = json.loads((folder / SEAL).read_text())
        files = facts["files"].items()
        intact = all(edge_digest(folder / name) == digest for name, digest in files)
        return facts if intact and expected in (None, facts["fingerprint"]) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
