"""A suite that is killed goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from threading import Event

import pytest

from fastloop.suite.suite_file import load_suite
from fastloop.suite.verify_file import find_problems

COMMAND = (
    sys.executable,
    "-m",
    "fastloop",
    "suite",
    "quick",
    "round=killed",
    "machine=here",
    "workloads=small_rows",
    "loaders=index_loop,python_loop,np_memmap",
    "trials=3",
)
"""Only np_memmap is a loader of the quick suite: the two others are null."""


def finished_windows(folder) -> dict[int, int]:
    """Number -> start of each window that a result in the folder has."""
    windows = {}
    for path in folder.glob("outputs/suite/killed/quick/small_rows/*/result.json"):
        trials = json.loads(path.read_text())["trials"]
        windows |= {each["number"]: each["benchmarks"]["traversal"]["start_ns"] for each in trials}
    return windows


@pytest.mark.heavy
@pytest.mark.nightly
def test_killed_suite_keeps_its_windows_and_measures_nothing_twice(tmp_path):
    environment = os.environ | {
        "FASTLOOP_LOCK": str(tmp_path / "lock"),
        "FASTLOOP_OUTPUTS": str(tmp_path / "outputs"),
    }
    options = {"cwd": tmp_path, "env": environment, "text": True}
    process = subprocess.Popen(COMMAND, start_new_session=True, **options)
    # A window is waited for, however long it takes: pytest ends a test that hangs.
    while not (before := finished_windows(tmp_path)):
        assert process.poll() is None
        Event().wait(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "results").exists()

    subprocess.run(COMMAND, check=True, **options)
    document = load_suite(tmp_path / "results" / "killed" / "here.json")
    assert find_problems(document) == []
    cells = {cell.label: cell for cell in document.cells}
    assert set(cells) == {"index_loop", "python_loop", "np_memmap"}
    assert all(cells[name].null_reason for name in ("index_loop", "python_loop"))
    kept = {number: each.start_ns for number, each in cells["np_memmap"].windows.items()}
    assert before.items() <= kept.items()
    assert not document.complete

    subprocess.run(COMMAND, check=True, **options)
    assert load_suite(tmp_path / "results" / "killed" / "here.json") == document
