"""The tests marked gpu, as a part of `make gpu`.

Those of the files that have any: the others may need Hydra or MLflow.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
OUTCOME = r"(?:tests/)?(\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)"


def run_tests(repository: Path, keep: Callable[..., None]) -> None:
    """A row a test, kept as each is known.

    Those of the placements have a process of their own, in which jax runs its threads: workers that
    another test forks beside these may wait for ever.
    """
    every = sorted((repository / "tests").glob("test_*.py"))
    files = [one for one in every if "pytest.mark.gpu" in one.read_text()]
    if not files:
        keep([], left_out=["no tests are here"])
        return
    files.sort(key=lambda one: one.name == "test_executions.py")  # compiling takes longest
    seen, statuses, summaries = Tests(waiting=[one.name for one in files]), [], []
    keep([], left_out=seen.left_out())
    for alone in (True, False):
        some = [one for one in files if (one.name == "test_placements.py") == alone]
        seen.waiting = [one.name for one in files if alone and one not in some]
        statuses.append(_pytest(repository, some, seen, keep))
        summaries.append(seen.last.strip(" =\n"))
    told = {"summary": "; ".join(summaries), "failed": any(statuses)}
    keep(seen.rows, left_out=seen.left_out(), **told)


@dataclass
class Tests:
    """What pytest has told of its tests, line by line."""

    rows: list[Figures] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Files that have not been begun."""
    selected: int = 0
    """Of those that have."""
    last: str = ""

    def told(self, line: str) -> bool:
        """True where a line says something of a test."""
        self.last = line
        if found := re.search(r"^collected \d+ items.* (\d+) selected", line):
            self.selected += int(found[1])
        elif line.startswith("SKIPPED ["):
            self.skipped.append(line.strip())
        elif found := re.match(OUTCOME, line):
            self.rows.append({"name": found[1], "outcome": found[2].lower()})
        else:
            return False
        return True

    def left_out(self) -> list[str]:
        """Why tests were skipped, and how many had no turn."""
        missing = self.selected - len(self.rows)
        late = [f"{missing} of {self.selected} tests: no time was left"] if missing > 0 else []
        return [*self.skipped, *late, *(f"{one}: no time was left" for one in self.waiting)]


def _pytest(repository: Path, files: list[Path], seen: Tests, keep: Callable[..., None]) -> int:
    """Its exit status; 0 also where none was collected."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-o", "addopts="]
    # other versions than CI's have other warnings; options are for the tests of every machine
    command += ["-p", "no:cacheprovider", "-W", "default", "--rootdir", str(repository), "-rsfE"]
    command += map(str, files)
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            if seen.told(line):
                keep(seen.rows, left_out=seen.left_out())
    return running.returncode if running.returncode != 5 else 0
