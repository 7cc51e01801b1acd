"""Wheels built as a user would build them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from options import REPOSITORY


def copy_sources(folder: Path) -> Path:
    """A copy of all files that git does not ignore."""
    source = folder / "source"
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in listing.stdout.splitlines():
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    return source


def build(
    source: Path, folder: Path, *flags: str, **environment: str
) -> subprocess.CompletedProcess:
    """Build into the folder; without flags the wheel is made of the sdist."""
    command = [sys.executable, "-m", "build", *flags, "--outdir", str(folder), str(source)]
    variables = os.environ | environment
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def build_wheel(folder: Path) -> Path:
    """Build the wheel from an sdist of a copy of the sources."""
    process = build(copy_sources(folder), folder / "dist")
    assert process.returncode == 0, process.stdout + process.stderr
    assert list((folder / "dist").glob("*.tar.gz"))
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel
