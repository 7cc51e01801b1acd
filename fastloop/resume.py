"""An interrupted sweep goes on where it stopped: finished trials that are still comparable stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from fastloop.arguments import read
from fastloop.entry import Entry, Row
from fastloop.files import outputs_folder, sweep_folders
from fastloop.refusal import Refused
from fastloop.result import RESULT_FILE, Result

LAST = "last"
MACHINE = ("host", "cpu", "cores_usable", "gpus")


def earlier_sweep(name: str) -> Path:
    """The folder that `resume=` names, a path or `last`; raises Refused where there is none."""
    newest = [path for path in sweep_folders() if any(path.glob(f"*/{RESULT_FILE}"))]
    folder = newest[-1] if name == LAST and newest else Path(name).absolute()
    if not any(folder.glob(f"*/{RESULT_FILE}")):
        where = outputs_folder() if name == LAST else folder
        raise Refused(f"resume={name}: no result.json of a sweep in {where}")
    return folder


def continued(entries: Sequence[Entry], folder: Path) -> list[Entry]:
    """The entries with what the sweep in the folder has left of each, in its place there.

    Raises Refused where it has nothing of any: that is another sweep.
    """
    left: dict[str, list[tuple[Path, Result]]] = {}
    for path in sorted(folder.glob(f"*/{RESULT_FILE}"), key=lambda path: len(path.parent.name)):
        earlier = read(path, "resume")
        left.setdefault(earlier.tags.get("config_hash", ""), []).append((path.parent, earlier))
    found = []
    for number, entry in enumerate(entries):
        same = left.get(entry.result.tags["config_hash"], [])
        place, earlier = same.pop(0) if same else (folder / f"{number}-{os.getpid()}", None)
        found.append(replace(entry, folder=place, earlier=earlier))
    if not any(entry.earlier for entry in found):
        raise Refused(f"resume={folder}: none of this command's jobs is in it")
    return found


def take_up(row: Row, now: Result, retry_failed: bool) -> str:
    """Go on with what is left of the row, or from the beginning; the text says why so."""
    earlier = row.result
    finished = earlier.status == "FINISHED" and len(row.done) >= row.entry.job.trials
    if earlier.key and earlier.key != now.key:
        kept = _kept(row.entry.folder, earlier.key)
        row.take_up(replace(now, run_id=earlier.run_id))
        changed = ", ".join(changes(earlier, now)) or "an option's own code"
        return f"{now.name} is measured anew, {changed} changed; what was measured is in {kept}"
    if finished or (earlier.status == "FAILED" and not retry_failed):
        row.keep()
        return ""
    marks = {"concurrent": "true"} if "concurrent" in earlier.tags else {}
    carried = {
        name: getattr(earlier, name) for name in ("trials", "rounds", "attribution", "run_id")
    }
    row.take_up(replace(now, tags=now.tags | marks, **carried))
    return ""


def fail(row: Row, reason: str, details: str) -> str:
    """End a row that can't be measured now; a finished one stays, and the text says so."""
    if row.is_taken_up:
        row.end("FAILED", reason, details)
        return ""
    if row.result.status == "FINISHED":
        row.keep()
        return f"{row.result.name} stays as it finished; now it could not be run: {reason}"
    row.take_up(row.result)
    row.end("FAILED", reason, details)
    return ""


def changes(earlier: Result, now: Result) -> list[str]:
    """What of code, data, libraries and machine is not as it was."""
    before, after = earlier.environment, now.environment
    found = ["the data"] if earlier.fingerprint != now.fingerprint else []
    found += ["fastloop's code"] if before.get("code") != after.get("code") else []
    old, new = before.get("versions", {}), after.get("versions", {})
    found += [
        f"{name} {old.get(name)} to {new[name]}" for name in new if old.get(name) != new[name]
    ]
    found += ["Python"] if before.get("python") != after.get("python") else []
    found += ["the machine"] if any(before.get(k) != after.get(k) for k in MACHINE) else []
    return found


def _kept(folder: Path, key: str) -> Path:
    """A copy of the result under a name that none has yet."""
    names = (folder / f"result-{key[:8]}{'-' * bool(n)}{n or ''}.json" for n in count())
    kept = next(path for path in names if not path.exists())
    shutil.copy2(folder / RESULT_FILE, kept)
    return kept
