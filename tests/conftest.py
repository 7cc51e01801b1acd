from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from options import REPOSITORY, compose_job, skip_without_its_library

from fastloop.optional import check_libraries
from fastloop.prepared import prepare
from fastloop.types import Unsupported

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Tests run beside each other, and each measures alone on a machine of its own, as it were.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="fastloop-test-")
# Nothing is measured here, and threads that spin for each other on busy cores take minutes.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    """A fresh outputs folder, for this process and those that it starts."""
    folder = tmp_path / "outputs"
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_outputs(tmp_path_factory) -> Path:
    """An outputs folder whose stores serve many tests."""
    return tmp_path_factory.mktemp("shared") / "outputs"


@pytest.fixture
def prepared_job(shared_outputs, monkeypatch):
    """compose_job with its store written, as (job, prepared)."""
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(shared_outputs))

    def make(*overrides: str):
        job = compose_job(*overrides)
        try:
            check_libraries(job.loader)
            return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)
        except Unsupported as why:
            skip_without_its_library(why)
            raise

    return make


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MiB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def fashion_root() -> Path:
    """The folder with 900 real Fashion-MNIST images that lies beside the checkout."""
    root = Path(os.environ.get("FASTLOOP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (root / "FashionMNIST" / "raw").is_dir():
        pytest.skip(f"no Fashion-MNIST files in {root}; FASTLOOP_TEST_DATA can name another folder")
    return root
