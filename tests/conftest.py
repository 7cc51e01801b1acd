from __future__ import annotations

import os
from pathlib import Path

import pytest
from options import REPOSITORY, compose_job

from fastloop.prepared import prepare

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"


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
        return job, prepare(job.dataset, job.loader.store)

    return make


@pytest.fixture(scope="session")
def fashion_root() -> Path:
    """The folder with 900 real Fashion-MNIST images that lies beside the checkout."""
    root = Path(os.environ.get("FASTLOOP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (root / "FashionMNIST" / "raw").is_dir():
        pytest.skip(f"no Fashion-MNIST files in {root}; FASTLOOP_TEST_DATA can name another folder")
    return root
