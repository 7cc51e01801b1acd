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
"""Maximum number of batches that are hashed to compare samples, because hashing takes time."""
AS_IS = Change()
"""A change that leaves the script as it is."""


class ScriptEnded(Unsupported):
    """A run of the script ended before the loop had received all batches that are timed."""


@dataclass(frozen=True, kw_only=True)
class HashedRun:
    """Times, hashes of the samples, and losses of the loop in one run.

    A pass is one iteration over the DataLoader. A rank is one of several processes of the script.
    """

    digests: list[int]
    """Hashes of samples of the first pass, in ascending order. If all batches of the pass are
    hashed, there is one hash for each rank, of all its samples. Otherwise there is one for each
    hashed batch. Empty if a batch can't be hashed."""
    seconds: float
    """Seconds of the loop in the slowest rank, without the time for hashing."""
    once_s: float
    """The part of `seconds` until the loop asks for its second batch."""
    hash_s: float
    """Seconds for hashing the second batch and later ones, in the slowest rank."""
    losses: list[Loss] = field(default_factory=list)
    """The losses of the steps on the hashed batches, rank by rank. The ranks are sorted by their
    lists of losses."""


class ScriptRunner:
    """Runs the beginning of a script, up to a number of batches of one loop, in new processes.

    arguments: the script and its arguments. found: the findings on the loop. batches: number of
    batches after which a run ends. folder: the folder in which the script runs: the working folder
    or a copy of it.
    """

    def __init__(
        self, arguments: Sequence[str], found: LoopFindings, batches: int, folder: Path
    ) -> None:
        # In a copy, an absolute path into the working folder would still lead to the original.
        self.arguments = [_place_in_folder(each, folder) for each in arguments]
        self.folder = folder
        self.batches_per_pass = loop_of_rank(found).batches_per_pass
        self.hashed = min(batches, self.batches_per_pass, DIGEST_BATCHES)
        """Number of batches, from the first one on, that are hashed."""
        self.notes: dict[str, tuple[str, ...]] = {}
        """Name of a change -> sentences on arguments of DataLoader that have no effect."""
        # If the script runs in a copy of the working folder, a file of the copy makes the loader.
        # A package that is installed from the original (pip install -e) makes it there.
        made_at = found.facts["made_at"]
        self.cut = CutRun(
            place=found.facts["place"],
            made_at=tuple(dict.fromkeys((_place_in_folder(made_at, folder), made_at))),
            batches=batches,
            change=AS_IS,
        )

    def seconds(self, change: Change, limit_s: float) -> float:
        """Seconds of the loop with the change, in the slowest rank.

        Raises ScriptEnded, with the last line of the output, if the script ends before its loop has
        received all batches. Raises Unsupported if the script is killed after limit_s seconds.
        """
        results = self._run(replace(self.cut, change=change), limit_s)
        # All loaders and ranks have the same sentences, so each sentence is kept once.
        self.notes[change.name] = tuple(
            dict.fromkeys(note for each in results for note in each.notes)
        )
        return max(each.seconds for each in results)

    def run_hashed(self, change: Change, limit_s: float) -> HashedRun:
        """Run the script with the change; return times, hashes and losses of the loop.

        Raises as `seconds` does.
        """
        return self._run_hashed(replace(self.cut, change=change, hashed=self.hashed), limit_s)

    def rerun_hashed(self, change: Change, limit_s: float) -> HashedRun:
        """Run the script as run_hashed does, but only up to the last batch that is hashed."""
        cut = replace(self.cut, change=change, hashed=self.hashed, batches=self.hashed)
        return self._run_hashed(cut, limit_s)

    def lengthen(self, batches: int) -> None:
        """Make further runs end after this many batches; the number of hashed batches stays."""
        self.cut = replace(self.cut, batches=batches)

    def _run_hashed(self, cut: CutRun, limit_s: float) -> HashedRun:
        """Run the plan `cut`, and combine the results of all ranks."""
        results = self._run(cut, limit_s)
        slowest = max(results, key=lambda each: each.seconds)
        # The files of the results don't name the ranks. Sorting by losses gives the ranks the same
        # order in each run.
        losses = sorted(each.losses for each in results)
        return HashedRun(
            digests=self._sort_digests([each.digests for each in results]),
            seconds=slowest.seconds,
            once_s=slowest.once_s,
            hash_s=slowest.hash_s,
            losses=[loss for of_rank in losses for loss in of_rank],
        )

    def _sort_digests(self, found: Sequence[list[int]]) -> list[int]:
        """The digests of a HashedRun. found: for each rank, a hash of each hashed batch."""
        if not all(found):
            return []
        if self.hashed == self.batches_per_pass:
            return sorted(sum(digests) % 2**64 for digests in found)
        return sorted(number for digests in found for number in digests)

    def _run(self, cut: CutRun, limit_s: float) -> list[CutResult]:
        """Run the plan `cut`; return the results of the processes that received all batches.

        Raises as `seconds` does.
        """
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
    """The argument, with an absolute path into the working folder moved into `folder`.

    text: a path, or an argument such as --out=<path>. Any other text is returned unchanged.
    """
    place = 0 if text.startswith("/") else text.find("=/") + 1
    before, path = text[:place], text[place:]
    here = str(Path.cwd())
    named = os.environ.get("PWD", "")
    # $PWD, the shell's path of the working folder, may lead through a symbolic link.
    is_here = named.startswith("/") and os.path.realpath(named) == here
    for each in (here, named) if is_here else (here,):
        if path == each or path.startswith(f"{each}/"):
            return f"{before}{folder}{path.removeprefix(each)}"
    return text
