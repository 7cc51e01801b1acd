from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from commands import fastloop
from options import MYDATASET, REPOSITORY, compose_job, script, skip_without_its_library

from fastloop.optional import check_libraries
from fastloop.prepared import prepare
from fastloop.types import Unsupported

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Commands write to the folder that they are called in, whatever the person's own shell says.
os.environ.pop("FASTLOOP_OUTPUTS", None)
# Tests run beside each other, and each measures alone on a machine of its own, as it were.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="fastloop-test-")
# Nothing is measured here, and threads that spin for each other on busy cores take minutes.
os.environ["OMP_NUM_THREADS"] = "1"
# One forkserver serves all tests of this process; what it starts finds torch imported.
multiprocessing.set_forkserver_preload(["torch", "tensordict", "fastloop.job", "fastloop.chunks"])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The longest tests first, those that run JAX last, and one worker for all tests of what is
    measured for them once."""
    items.sort(key=lambda item: (_runs_jax(item), item.get_closest_marker("slow") is None))
    for item in items:
        made = item._fixtureinfo.name2fixturedefs.items()
        shared = sorted(name for name, found in made if found[-1].scope == "module")
        if "measured" in item.fixturenames:
            shared = ["measured"]
        for name in shared[:1]:
            item.add_marker(pytest.mark.xdist_group(name))


def _runs_jax(item) -> bool:
    """True for what leaves JAX's threads in this process, which no test may fork from then on."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    # by type first: an array compares element by element
    named = any(isinstance(one, str) and one == "jax" for one in params)
    return named or item.get_closest_marker("jax") is not None


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


@pytest.fixture
def memory_group():
    """A function of MiB: the folder of a memory cgroup with that limit, where such can be made."""
    with ExitStack() as stack:

        def make(limit_mib: int) -> Path:
            try:
                return stack.enter_context(script("memory_groups").memory_group(limit_mib))
            except OSError as why:
                pytest.skip(f"no memory cgroup can be made here: {why}")

        yield make


@pytest.fixture(scope="session")
def fashion_root() -> Path:
    """The folder with 900 real Fashion-MNIST images that lies beside the checkout."""
    root = Path(os.environ.get("FASTLOOP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (root / "FashionMNIST" / "raw").is_dir():
        pytest.skip(f"no Fashion-MNIST files in {root}; FASTLOOP_TEST_DATA can name another folder")
    return root


@pytest.fixture(scope="session")
def measured(tmp_path_factory, empty_database) -> Path:
    """A working folder with a real sweep, recorded in MLflow, three jobs of it unsupported."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    small = ["benchmark=all", "epochs=1", "trials=6", "torch_threads=1", *MYDATASET]
    jobs = ["loader=raw,preload,np_memmap", "device=cpu,cuda:99"]
    done = fastloop("-m", *jobs, *small, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """An MLflow database with its tables and no more: making them takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    program = "import sys; from mlflow.tracking import MlflowClient\n"
    program += "MlflowClient(tracking_uri=f'sqlite:///{sys.argv[1]}').search_experiments()"
    subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True)
    return path


@pytest.fixture
def database(tmp_path, empty_database) -> Path:
    """The MLflow database of a command in tmp_path, for tests of anything but its making."""
    (tmp_path / "outputs").mkdir()
    return Path(shutil.copy(empty_database, tmp_path / "outputs"))
