"""Load the files of rounds in a folder of results: `<round>/<machine>.json`, and those of claims in
`<round>/claims/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastloop.core.text import printable_line
from fastloop.core.types import UsageError
from fastloop.suite.suite_file import SuiteFile, load_suite
from fastloop.suite.verify_file import check_file

ROUNDS, CLAIMS_FILES = "*/*.json", "*/claims/*.json"
"""Patterns of the files in the folder of results."""


@dataclass(frozen=True, kw_only=True)
class LoadedRound:
    """A verified file with the names of its round and machine."""

    round: str
    machine: str
    document: SuiteFile

    @property
    def newest_ms(self) -> int:
        """Start of the last window, in milliseconds since 1970; 0 if nothing was measured."""
        return max((cell.measured_ms or 0 for cell in self.document.cells), default=0)


def load_rounds(results: Path, pattern: str = ROUNDS) -> list[LoadedRound]:
    """Load the verified files <results>/<round>/<machine>.json, in the order of their last windows.

    pattern: ROUNDS, or CLAIMS_FILES for those of claims. Raises UsageError if a file was altered,
    lies in another folder than that of its round and its kind, or has windows of another file.
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
    # A name does not say when a round ran: the fourth one of a month would precede the second.
    return sorted(rounds, key=lambda each: each.newest_ms)


def best_of_machines(rounds: list[LoadedRound]) -> dict[str, LoadedRound]:
    """Machine -> the newest round of its best kind.

    The kinds are, the best first: full and complete, full, quick and complete, quick.
    """
    by_weight = sorted(
        rounds, key=lambda each: (each.document.scope == "full", each.document.complete)
    )
    best = {each.machine: each for each in by_weight}
    return {machine: best[machine] for machine in dict.fromkeys(each.machine for each in rounds)}


def _check_place(document: SuiteFile, path: Path, name: str, *, of_claims: bool) -> None:
    """Raise UsageError if the file is not in the folder that `fastloop suite` has written it to."""
    if document.round != name:
        where = f"round: {document.round}: it is in the folder of another round"
        raise UsageError(printable_line(f"{path}: {where}; allowed: <round>/<machine>.json"))
    if (document.scope == "claims") != of_claims:
        other = "<round>/<machine>.json" if of_claims else "<round>/claims/<machine>.json"
        raise UsageError(f"{path}: scope: {document.scope}; allowed: {other}")


def _check_windows(document: SuiteFile, path: Path, paths: dict[str, Path]) -> None:
    """Raise UsageError if a cell has the windows of a file that was read before.

    paths: the windows of each cell so far -> the file that has them; those of this one are added.
    """
    for cell in document.cells:
        seals = [cell.seals[name] for name in sorted(cell.seals) if name.startswith("windows.")]
        other = paths.setdefault(" ".join(seals), path) if seals else path
        # A copy under another name would be shown as another machine.
        if other != path:
            where = f"cells[{cell.workload} {cell.label}].windows: they are those of {other}"
            raise UsageError(printable_line(f"{path}: {where}; allowed: each file once"))
