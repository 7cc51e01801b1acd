"""report and compare under the limits of a shell and on a full disk: one line, no half file."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import QUICK, run_fastloop

pytestmark = pytest.mark.slow
KIB = 1 << 10


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """The folder of a measured sweep."""
    folder = tmp_path_factory.mktemp("limits")
    quick = ("loader=raw", "isolation=inline", "tracker=none", "report=false", *QUICK)
    process = run_fastloop(*quick, cwd=folder)
    assert process.returncode == 0, process.stderr
    return next(folder.glob("outputs/20*/*"))


def limited(command: str, folder: Path, limit: int, most: int) -> subprocess.CompletedProcess[str]:
    """The command on this folder, with that limit of the system.

    It writes no bytecode, of which a limit of file sizes would leave half a file for good.
    """
    settings = {
        "compare": (f"base={folder}", f"new={folder}"),
        "prepare": ("loader=raw", "dataset=digits"),
        "report": (f"folder={folder}",),
    }
    line = [sys.executable, "-m", "fastloop", command, *settings[command]]
    return subprocess.run(
        line,
        cwd=folder.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(limit, (most, most)),
    )


def files(folder: Path) -> set[str]:
    """Names of all files that hold something."""
    return {each.name for each in folder.rglob("*") if each.is_file() and each.stat().st_size}


def test_library_that_does_not_fit_into_memory_is_one_line(tmp_path):
    # Enough for all libraries but torch. OpenBLAS would try for ever if it got too little.
    process = limited("prepare", tmp_path / "none", resource.RLIMIT_AS, 300_000 * KIB)
    assert process.returncode == 1
    assert ".so: failed to map segment from shared object" in process.stderr
    assert process.stderr.count("\n") == 1
    assert process.stdout == ""


@pytest.mark.heavy
@pytest.mark.parametrize("most", [KIB, 8 * KIB])
def test_page_that_is_too_large_is_named_and_leaves_no_half(sweep, tmp_path, most):
    folder = Path(shutil.copytree(sweep, tmp_path / "sweep"))
    before = files(folder)
    process = limited("report", folder, resource.RLIMIT_FSIZE, most)
    assert process.returncode == 1
    assert "File too large" in process.stderr
    assert "report" in process.stderr
    assert process.stderr.count("\n") == 1
    assert files(folder) == before


def test_comparison_needs_no_files(sweep):
    process = limited("compare", sweep, resource.RLIMIT_FSIZE, KIB)
    assert process.returncode == 0
    assert "1.000" in process.stdout


def test_full_disk_keeps_the_earlier_report(sweep, small_disk):
    folder = Path(shutil.copytree(sweep, small_disk / "sweep"))
    process = run_fastloop(f"folder={folder}", "format=html", cwd=folder, command="report")
    assert process.returncode == 0, process.stderr
    page = folder / "report" / "report.html"
    page.write_text("the earlier page")
    free = shutil.disk_usage(small_disk).free
    (small_disk / "fill").write_bytes(bytes(free))
    process = run_fastloop(f"folder={folder}", "format=html", cwd=folder, command="report")
    assert process.returncode == 1
    assert "No space left on device" in process.stderr
    assert process.stderr.count("\n") == 1
    assert page.read_text() == "the earlier page"
    assert [each.name for each in page.parent.iterdir()] == ["report.html"]
    process = run_fastloop(f"base={folder}", f"new={folder}", cwd=folder, command="compare")
    assert process.returncode == 0, process.stderr
