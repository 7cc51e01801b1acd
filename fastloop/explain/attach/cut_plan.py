"""The plan of a shortened run of a script, and its processes' results, as files of a folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastloop.explain.attach.loss_comparison import Loss
from fastloop.explain.change import Change, change_from

CUT = "cut.json"
"""File with the plan; it shows the probe that the script's run is a shortened one."""
RESULT = "result-{}.json"
"""File with the result of a process, by its id."""


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
    """The samples of this many batches, from the first one on, are hashed, and the losses of their
    steps recorded. The time for hashing does not count as part of the loop, but workers go on
    meanwhile."""


@dataclass(kw_only=True)
class CutResult:
    """The loop in a process of a shortened run."""

    seconds: float = 0.0
    """Time of the loop's passes: iter(), the waits and the steps of its batches."""
    once_s: float = 0.0
    """The part of it until the loop asks for its second batch: it also starts workers, and in the
    first step libraries."""
    hash_s: float = 0.0
    """Time for hashing the batches after the first one: hashing that one imports libraries."""
    batches: int = 0
    digests: list[int] = field(default_factory=list)
    """A hash of each batch's samples, in any order; empty if they are not hashed."""
    losses: list[Loss] = field(default_factory=list)
    """The calls of backward() in the steps on these batches."""
    notes: list[str] = field(default_factory=list)
    """Sentences on the arguments of DataLoader that FastLoader drops."""


def write_cut(folder: Path, cut: CutRun) -> None:
    """Let processes that record to the folder run shortened."""
    (folder / CUT).write_text(json.dumps(asdict(cut)))


def read_cut(folder: Path) -> CutRun | None:
    """The shortened run that the folder asks for; None: a whole one, which is recorded."""
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
