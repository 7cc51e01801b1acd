"""Write and read the plan of a shortened run of a script, and the results of its processes.

A shortened run ends once the loop has worked on a number of batches. Plan and results are files of
a folder, to which the script's processes record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastloop.explain.attach.loss_comparison import Loss
from fastloop.explain.change import Change, change_from

CUT = "cut.json"
"""Name of the file with the plan. If the file exists, the run is a shortened one."""
RESULT = "result-{}.json"
"""Name of the file with the result of the process with that id."""


@dataclass(frozen=True, kw_only=True)
class CutRun:
    """The plan of a shortened run: the loop that is timed, and the change of its DataLoader."""

    place: str
    """File and line of the loop."""
    made_at: tuple[str, ...]
    """Path and line of the call that makes the DataLoader; several paths if the file may lie in
    several folders."""
    batches: int
    """Number of batches of the loop after which the script ends."""
    change: Change
    """The change of the DataLoader; an empty change leaves the script as it is."""
    hashed: int = 0
    """Number of the first batches for which the samples are hashed, and the losses of the steps
    recorded. The time for hashing does not count as part of the loop, but workers go on
    meanwhile."""


@dataclass(kw_only=True)
class CutResult:
    """The result of a process of a shortened run: the times, hashes and losses of the loop."""

    seconds: float = 0.0
    """Time of the loop's passes, which consists of iter(), the waits and the steps."""
    once_s: float = 0.0
    """The part of `seconds` until the loop asks for its second batch. In this time workers start,
    and the first step loads libraries."""
    hash_s: float = 0.0
    """Seconds for hashing all batches except the first one, because hashing that one also imports
    libraries."""
    batches: int = 0
    """Number of batches that the loop has received."""
    digests: list[int] = field(default_factory=list)
    """A hash for each of the first batches, as many as the plan says, which does not depend on the
    order of the batch's samples; empty if samples are not hashed, or can't be hashed."""
    losses: list[Loss] = field(default_factory=list)
    """The losses of the steps on the hashed batches."""
    notes: list[str] = field(default_factory=list)
    """Sentences on the arguments of DataLoader that FastLoader drops."""


def write_cut(folder: Path, cut: CutRun) -> None:
    """Write the plan to the folder, so that processes that record to the folder carry it out."""
    (folder / CUT).write_text(json.dumps(asdict(cut)))


def read_cut(folder: Path) -> CutRun | None:
    """The plan in the folder; None if there is none, because a whole run is recorded."""
    try:
        read = json.loads((folder / CUT).read_text())
    except FileNotFoundError:
        return None
    # JSON turns a tuple into a list.
    made_at = tuple(read["made_at"])
    change = change_from(read["change"])
    return CutRun(**read | {"made_at": made_at, "change": change})


def read_results(folder: Path) -> list[CutResult]:
    """The results of the processes in which the loop has worked on all batches of the plan."""
    paths = sorted(folder.glob(RESULT.format("*")))
    return [CutResult(**json.loads(path.read_text())) for path in paths]
