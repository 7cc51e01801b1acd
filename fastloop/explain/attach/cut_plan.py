"""The plan of a shortened run of a script, and its processes' results, as files of a folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastloop.explain.attach.loss_comparison import Loss
from fastloop.explain.change import Change, change_from

CUT = "cut.json"
"""Name of the file with the plan; if a probe finds this file, the run is a shortened one."""
RESULT = "result-{}.json"
"""Name of the file with the result of a process, by the id of the process."""


@dataclass(frozen=True, kw_only=True)
class CutRun:
    """The loop of a script that is timed, and the change of its DataLoader."""

    place: str
    """File and line of the loop."""
    made_at: tuple[str, ...]
    """Path and line of the call that makes the DataLoader; several if its file may be in one of
    several folders."""
    batches: int
    """Number of batches after which the script ends."""
    change: Change
    hashed: int = 0
    """Number of batches, from the first one on, of which the samples are hashed, and the losses of
    the steps recorded. The time for hashing does not count as part of the loop, but workers go on
    meanwhile."""


@dataclass(kw_only=True)
class CutResult:
    """The loop in a process of a shortened run."""

    seconds: float = 0.0
    """Time of the loop's passes: iter(), the waits and the steps of its batches."""
    once_s: float = 0.0
    """The part of `seconds` until the loop asks for its second batch: workers start in it, and the
    first step loads libraries."""
    hash_s: float = 0.0
    """Time for hashing the second batch and later ones: hashing the first one also imports
    libraries."""
    batches: int = 0
    digests: list[int] = field(default_factory=list)
    """A hash of each batch's samples, whatever their order; empty if they are not hashed."""
    losses: list[Loss] = field(default_factory=list)
    """The losses of the steps on the hashed batches."""
    notes: list[str] = field(default_factory=list)
    """Sentences on the arguments of DataLoader that FastLoader drops."""


def write_cut(folder: Path, cut: CutRun) -> None:
    """Let processes that record to the folder make a shortened run."""
    (folder / CUT).write_text(json.dumps(asdict(cut)))


def read_cut(folder: Path) -> CutRun | None:
    """The shortened run that the folder asks for; None: a whole run is recorded."""
    try:
        read = json.loads((folder / CUT).read_text())
    except FileNotFoundError:
        return None
    # JSON turns a tuple into a list.
    made_at = tuple(read["made_at"])
    change = change_from(read["change"])
    return CutRun(**read | {"made_at": made_at, "change": change})


def read_results(folder: Path) -> list[CutResult]:
    """The loop in each process that had all batches."""
    paths = sorted(folder.glob(RESULT.format("*")))
    return [CutResult(**json.loads(path.read_text())) for path in paths]
