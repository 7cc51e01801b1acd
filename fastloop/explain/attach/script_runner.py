"""Run the beginning of a script again, as it is or with a change of one of its DataLoaders."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastloop.core.types import Unsupported
from fastloop.explain.attach.cut_plan import CutResult, CutRun, read_results, write_cut
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.follow_children import BOOTSTRAP
from fastloop.explain.attach.further_runs import read_last_line, run_again
from fastloop.explain.attach.loss_comparison import Loss
from fastloop.explain.attach.run_length import loop_of_rank
from fastloop.explain.change import Change

DIGEST_BATCHES = 200
"""Samples are compared in at most this many batches, because hashing them takes time."""
AS_IS = Change()
"""The change that changes nothing."""


class ScriptEnded(Unsupported):
    """A further run of the script ended before its loop had received all batches to time."""


@dataclass(frozen=True, kw_only=True)
class HashedRun:
    """The loop in a run in which its samples are hashed, and its losses recorded."""

    digests: list[int]
    """Hashes of the samples in the first pass, in ascending order. If all batches of the pass are
    hashed, each rank has one hash of all samples; otherwise each hashed batch has one. Empty if a
    batch can't be hashed."""
    seconds: float
    """Time of the loop, of the slowest rank if there are several, without the hashing."""
    once_s: float
    """The part of `seconds` until the loop asks for its second batch."""
    hash_s: float
    """Time for hashing the second batch and later ones."""
    losses: list[Loss] = field(default_factory=list)
    """The losses of the steps on the batches that are hashed; one rank after the other, the ranks
    in ascending order of their losses."""


class ScriptRunner:
    """Runs the script's beginning, with its output in a file."""

    def __init__(
        self, arguments: Sequence[str], found: LoopFindings, batches: int, folder: Path
    ) -> None:
        # An absolute path into the working folder would lead to the original, not to the copy.
        self.arguments = [_place_in_folder(each, folder) for each in arguments]
        self.folder = folder
        self.batches_per_pass = loop_of_rank(found).batches_per_pass
        self.hashed = min(batches, self.batches_per_pass, DIGEST_BATCHES)
        self.notes: dict[str, tuple[str, ...]] = {}
        """Sentences on arguments that have no effect, by the name of the change."""
        # A script in a copy of the working folder makes its loader there, unless it is in a package
        # that is installed from the original (pip install -e).
        made_at = found.facts["made_at"]
        self.cut = CutRun(
            place=found.facts["place"],
            made_at=tuple(dict.fromkeys((_place_in_folder(made_at, folder), made_at))),
            batches=batches,
            change=AS_IS,
        )

    def seconds(self, change: Change, limit_s: float) -> float:
        """Seconds of the loop with the change; of the slowest rank if there are several.

        Raises ScriptEnded, with the last line of the output, if the script ends before its loop has
        received all batches, and Unsupported if it has to be killed after limit_s.
        """
        results = self._run(replace(self.cut, change=change), limit_s)
        # Each loader and each rank has the same sentences: they are kept once.
        self.notes[change.name] = tuple(
            dict.fromkeys(note for each in results for note in each.notes)
        )
        return max(each.seconds for each in results)

    def run_hashed(self, change: Change, limit_s: float) -> HashedRun:
        """The loop with the change, with hashes of its samples and its losses. Raises as `seconds`
        does."""
        return self._run_hashed(replace(self.cut, change=change, hashed=self.hashed), limit_s)

    def rerun_hashed(self, change: Change, limit_s: float) -> HashedRun:
        """Like run_hashed, but the run ends after the batches that are hashed."""
        cut = replace(self.cut, change=change, hashed=self.hashed, batches=self.hashed)
        return self._run_hashed(cut, limit_s)

    def lengthen(self, batches: int) -> None:
        """Make further runs end after this many batches; the number of hashed batches stays."""
        self.cut = replace(self.cut, batches=batches)

    def _run_hashed(self, cut: CutRun, limit_s: float) -> HashedRun:
        results = self._run(cut, limit_s)
        slowest = max(results, key=lambda each: each.seconds)
        # The files of the results don't tell the ranks. In each run the order is the same.
        losses = sorted(each.losses for each in results)
        return HashedRun(
            digests=self._sort_digests([each.digests for each in results]),
            seconds=slowest.seconds,
            once_s=slowest.once_s,
            hash_s=slowest.hash_s,
            losses=[loss for of_rank in losses for loss in of_rank],
        )

    def _sort_digests(self, found: Sequence[list[int]]) -> list[int]:
        """The digests of all ranks, as HashedRun has them."""
        if not all(found):
            return []
        if self.hashed == self.batches_per_pass:
            return sorted(sum(digests) % 2**64 for digests in found)
        return sorted(number for digests in found for number in digests)

    def _run(self, cut: CutRun, limit_s: float) -> list[CutResult]:
        """The results of a run, of the processes that had all batches. Raises as `seconds` does."""
        with tempfile.TemporaryDirectory(prefix="fastloop-try-") as name:
            folder = Path(name)
            write_cut(folder, cut)
            output = folder / "output.txt"
            command = [sys.executable, BOOTSTRAP, name, *self.arguments]
            try:
                run_again(command, self.folder, output, lambda process: process.wait(limit_s))
            except subprocess.TimeoutExpired:
                late = f"the script had not reached batch {cut.batches} after {limit_s:.0f} s"
                raise Unsupported(late) from None
            if results := read_results(folder):
                return results
            reason = read_last_line(output)
            raise ScriptEnded(f"the script ended before batch {cut.batches}: {reason}")


def _place_in_folder(text: str, folder: Path) -> str:
    """The path, or the argument such as --out=<path>, that names the same file in the folder, if
    the file lies in the working folder."""
    place = 0 if text.startswith("/") else text.find("=/") + 1
    before, path = text[:place], text[place:]
    here = str(Path.cwd())
    named = os.environ.get("PWD", "")
    # The shell's name of the working folder may lead through a symbolic link.
    is_here = named.startswith("/") and os.path.realpath(named) == here
    for each in (here, named) if is_here else (here,):
        if path == each or path.startswith(f"{each}/"):
            return f"{before}{folder}{path.removeprefix(each)}"
    return text
