"""FastLoader without the native core passes the tests of FastLoader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from options import REPOSITORY

FOLDER = Path(__file__).parent


@pytest.mark.heavy
@pytest.mark.slow
def test_every_quick_test_passes_without_the_native_core():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1"]
    process = subprocess.run(
        [*command, "-m", "not heavy and not soak", str(FOLDER)],
        env=os.environ | {"FASTLOOP_PURE": "1", "FASTLOOP_NATIVE": ""},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:]
    assert "no native core" in process.stdout  # its own tests are skipped
