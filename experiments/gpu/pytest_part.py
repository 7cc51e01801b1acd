"""The tests marked gpu, as a part of the GPU run.

Only files with such tests are collected, because the others may need Hydra or MLflow.
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
    """Files that pytest has not begun."""
    selected: int = 0
    """Collected tests of the files that it has begun."""
    last: str = ""

    def read(self, line: str) -> bool:
        """Read a line of output; True if it says something about a test."""
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
        """Lines with the reasons why tests were skipped, and the number of tests that did not
        run."""
        missing = self.selected - len(self.rows)
        late = [f"{missing} of {self.selected} tests: no time was left"] if missing > 0 else []
        return [*self.skipped, *late, *(f"{file}: no time was left" for file in self.waiting)]


def run_tests(repository: Path, keep: Callable[..., None]) -> None:
    """Run the tests, and keep a row for each as soon as its outcome is known.

    The tests of placements have their own process, because jax runs its threads in it, and workers
    that another test forks there may wait forever.
    """
    paths = sorted((repository / "tests").rglob("test_*.py"))
    files = [path for path in paths if "pytest.mark.gpu" in path.read_text()]
    if not files:
        keep([], left_out=["no tests are here"])
        return
    # Compiling takes longest, so it comes last.
    files.sort(key=lambda path: path.name == "test_executions.py")
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
    """Run these files. Returns pytest's exit status, or 0 if no test was collected."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-o", "addopts="]
    # The installed versions may have other warnings than CI's, so no warning is an error here.
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
