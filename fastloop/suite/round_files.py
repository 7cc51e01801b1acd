"""Load the files that `fastloop suite` has written to a folder of results.

A file of a round is <round>/<machine>.json, and a file of claims <round>/claims/<machine>.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastloop.core.text import printable_line
from fastloop.core.types import UsageError
from fastloop.suite.suite_file import SuiteFile, load_suite
from fastloop.suite.verify_file import check_file

ROUNDS, CLAIMS_FILES = "*/*.json", "*/claims/*.json"
"""Patterns of the files of rounds, and of the files of claims, in the folder of results."""


@dataclass(frozen=True, kw_only=True)
class LoadedRound:
    """A verified file with the names of its round and machine."""

    round: str
    machine: str
    document: SuiteFile

    @property
    def newest_ms(self) -> int:
        """Start of the last trial, in milliseconds since 1970; 0 if nothing was measured."""
        return max((cell.measured_ms or 0 for cell in self.document.cells), default=0)


def load_rounds(results: Path, pattern: str = ROUNDS) -> list[LoadedRound]:
    """Load the files of rounds and verify them; returns them in the order of their last trials.

    A window is a timed stretch of a trial. pattern: ROUNDS, or CLAIMS_FILES for the files of
    claims. Raises UsageError if a file was altered, is in the folder of another round or kind, or
    has windows of another file.
    """
    rounds = []
    paths = dict[str, Path]()
    for path in sorted(results.glob(pattern)):
        document = load_suite(path)
        check_file(document, str(path))
        name = path.relative_to(results).parts[0]
        _check_place(document, path, name, of_claims=pattern == CLAIMS_FILES)
        _check_windows(document, path, paths)
        rounds.append(LoadedRound(round=name, machine=path.stem, document=document))
    # Rounds are not sorted by name, because a month's round `fourth` would precede `second`.
    return sorted(rounds, key=lambda each: each.newest_ms)


def best_of_machines(rounds: list[LoadedRound]) -> dict[str, LoadedRound]:
    """Machine -> the newest round of the best kind that the machine has.

    rounds: in the order of time. The kinds are, the best first: full and complete, full, quick and
    complete, quick.
    """
    by_weight = sorted(
        rounds, key=lambda each: (each.document.scope == "full", each.document.complete)
    )
    best = {each.machine: each for each in by_weight}
    return {machine: best[machine] for machine in dict.fromkeys(each.machine for each in rounds)}


def _check_place(document: SuiteFile, path: Path, name: str, *, of_claims: bool) -> None:
    """Raise UsageError unless the file is in the folder of its round, and of its kind.

    name: the round of the folder with the file. of_claims: True if this is a folder of claims.
    """
    if document.round != name:
        where = f"round: {document.round}: it is in the folder of another round"
        raise UsageError(printable_line(f"{path}: {where}; allowed: <round>/<machine>.json"))
    if (document.scope == "claims") != of_claims:
        other = "<round>/<machine>.json" if of_claims else "<round>/claims/<machine>.json"
        raise UsageError(f"{path}: scope: {document.scope}; allowed: {other}")


def _check_windows(document: SuiteFile, path: Path, paths: dict[str, Path]) -> None:
    """Raise UsageError if a cell has the windows of a file that was read before.

    paths: seals of a cell's windows -> the file with this cell, for all files that were read
    before. The cells of this file are added.
    """
    for cell in document.cells:
        seals = [cell.seals[name] for name in sorted(cell.seals) if name.startswith("windows.")]
        other = paths.setdefault(" ".join(seals), path) if seals else path
        # A copy of a file under another name would be shown as another machine.
        if other != path:
            where = f"cells[{cell.workload} {cell.label}].windows: they are those of {other}"
            raise UsageError(printable_line(f"{path}: {where}; allowed: each file once"))
