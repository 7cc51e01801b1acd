"""FastLoader without the native core passes the tests of FastLoader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from options import REPOSITORY

FOLDER = Path(__file__).parent
PYTHON_ONLY = (
    "test_bare_environment.py",
    "test_dataset_threads.py",
    "test_user_store.py",
    "test_iterable_sources.py",
    "test_process_reading.py",
    "test_shared_batch.py",
    "test_dataloader_settings.py",
    "test_process_group.py",
    "test_library_sources.py",
    "test_recognise_image_folders.py",
    "test_restart_markers.py",
    "test_usual_programs.py",
    "test_global_generators.py",
    "test_loop_or_thread.py",
)
"""Files that test nothing of what the core does, but start processes, or import other libraries."""


# Two halves, as each has to end within the time after which a test is taken for hanging.
@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_every_quick_test_passes_without_the_native_core(half):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    names = sorted(path.name for path in FOLDER.glob("test_*.py") if path.name not in PYTHON_ONLY)
    files = [str(FOLDER / name) for name in names[half::2]]
    process = subprocess.run(
        [*command, "-m", "not heavy and not soak and not slow", *files],
        env=os.environ | {"FASTLOOP_PURE": "1", "FASTLOOP_NATIVE": ""},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:]
    # The core's own tests are skipped.
    if "test_native_core.py" in names[half::2]:
        assert "no native core" in process.stdout
