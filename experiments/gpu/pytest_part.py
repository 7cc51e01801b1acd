"""The tests marked gpu, as a part of the GPU run.

Only files that have such tests are collected: the others may need Hydra or MLflow.
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


@dataclass
class Outcomes:
    """The outcomes of tests, read from the lines that pytest prints."""

    rows: list[Figures] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Files that have not been started."""
    selected: int = 0
    """Tests of those that have."""
    last: str = ""

    def read(self, line: str) -> bool:
        """Take in a line; True if it says something about a test."""
        self.last = line
        if match := re.search(r"^collected \d+ items.* (\d+) selected", line):
            self.selected += int(match[1])
        elif line.startswith("SKIPPED ["):
            self.skipped.append(line.strip())
        elif match := re.match(OUTCOME, line):
            self.rows.append({"name": match[1], "outcome": match[2].lower()})
        else:
            return False
        return True

    def omissions(self) -> list[str]:
        """Why tests were skipped, and how many had no turn."""
        missing = self.selected - len(self.rows)
        late = [f"{missing} of {self.selected} tests: no time was left"] if missing > 0 else []
        return [*self.skipped, *late, *(f"{file}: no time was left" for file in self.waiting)]


def run_tests(repository: Path, keep: Callable[..., None]) -> None:
    """A row a test, kept as soon as it is known.

    The tests of the placements have a process of their own: jax runs its threads in it, and workers
    that another test forks there may wait forever.
    """
    paths = sorted((repository / "tests").rglob("test_*.py"))
    files = [path for path in paths if "pytest.mark.gpu" in path.read_text()]
    if not files:
        keep([], left_out=["no tests are here"])
        return
    files.sort(key=lambda path: path.name == "test_executions.py")  # compiling takes longest
    outcomes, statuses, summaries = Outcomes(waiting=[path.name for path in files]), [], []
    keep([], left_out=outcomes.omissions())
    for is_alone in (True, False):
        group = [path for path in files if (path.name == "test_placements.py") == is_alone]
        outcomes.waiting = [path.name for path in files if is_alone and path not in group]
        statuses.append(_run_pytest(repository, group, outcomes, keep))
        summaries.append(outcomes.last.strip(" =\n"))
    summary = {"summary": "; ".join(summaries), "failed": any(statuses)}
    keep(outcomes.rows, left_out=outcomes.omissions(), **summary)


def _run_pytest(
    repository: Path, files: list[Path], outcomes: Outcomes, keep: Callable[..., None]
) -> int:
    """Run these files; pytest's exit status, or 0 if no test was collected."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-o", "addopts="]
    # other versions than CI's have other warnings; options are for the tests of every machine
    command += [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        "-W",
        "default",
        "--rootdir",
        str(repository),
        "-rsfE",
    ]
    command += map(str, files)
    with subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            if outcomes.read(line):
                keep(outcomes.rows, left_out=outcomes.omissions())
    return running.returncode if running.returncode != 5 else 0
