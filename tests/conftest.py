from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import options
import pytest
from commands import run_fastloop
from filelock import FileLock
from options import MYDATASET, REPOSITORY, compose_short_job, skip_without_library
from wheels import build_wheel

from experiments.lib import memory_groups
from fastloop.core.optional_libraries import check_libraries
from fastloop.core.types import Unsupported
from fastloop.processes.command_endings import ENDINGS

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# Every process that a test starts would compile all of fastloop again, and every worker all tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Commands write to the folder they are called in, whatever the shell's environment.
os.environ.pop("FASTLOOP_OUTPUTS", None)
# Tests run concurrently: each worker gets its own folder of temporary files, and lock of measuring.
PREFIX = "fastloop-test-"
# Not inside of that of a test that runs pytest: addresses of sockets have at most 107 characters.
outermost = next(
    folder
    for folder in (Path(tempfile.gettempdir(), "x").parents)
    if not folder.name.startswith(PREFIX)
)
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix=PREFIX, dir=outermost)
os.environ["FASTLOOP_LOCK"] = str(Path(os.environ["TMPDIR"]) / "fastloop-measures.lock")
# Speed does not matter here, and OpenMP threads that spin on busy cores take minutes.
os.environ["OMP_NUM_THREADS"] = "1"
# A background process of a shell ignores SIGINT, and its children would too. A handler that does
# nothing ignores it here as well, but each program that a test starts gets the default action.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)
# One forkserver serves all tests of this process; its children find torch imported.
multiprocessing.set_forkserver_preload(
    ["torch", "tensordict", "fastloop.trial.support", "fastloop.data.chunked_reader"]
)

pytest_plugins = ["hanging_tests", "earlier_runs", "lone_tests", "shared_server"]

# The same examples at each run: a change is judged by what it changes. `make soak` draws others.
hypothesis.settings.register_profile("dev", max_examples=20, deadline=None, derandomize=True)
hypothesis.settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
hypothesis.settings.register_profile("soak", max_examples=300, deadline=None, print_blob=True)
hypothesis.settings.load_profile("dev")

HEAVY = {
    "tf_data",
    "ffcv",
    "jax",
    "compiled",
    "dali",
    "grain",
    "hf_datasets",
    "hf_iterable",
    "lance",
    "litdata",
    "mosaic_streaming",
    "parquet",
    "spdl",
    "spdl_process",
    "torchdata",
    "torchdata_nodes",
    "turboloader",
    "turboloader_arrays",
    "webdataset",
    "zarr",
}
"""Options whose library takes seconds to import or to compile with, in every process, and the other
loaders that peers provide: only a change of their adapter breaks them."""
HEAVY_FIXTURES = {"measured_sweep", "recorded", "resumed_sweep", "sweep"}
"""Fixtures that run a whole sweep."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Run long tests first, and last those that are alone and those of JAX; one worker runs all
    tests that are alone, or share a fixture of module scope, the measured sweep, or a library that
    takes seconds to import."""
    # The workers of pytest-xdist would not collect the same tests.
    if addresses := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"{addresses[0]}: allowed: a name without an address in memory")
    items.sort(key=_place_in_run)
    # `make gpu` does without pytest-xdist, which knows this mark.
    has_workers = config.pluginmanager.hasplugin("xdist")
    for item in items:
        heavy = HEAVY & {*_string_parameters(item)}
        if heavy or HEAVY_FIXTURES & {*item.fixturenames}:
            item.add_marker("heavy")
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
        fixtures = item._fixtureinfo.name2fixturedefs.items()
        shared = sorted(name for name, defined in fixtures if defined[-1].scope == "module")
        # Tests of JAX come last, when no worker has anything else to do.
        shared = shared or sorted(heavy - {"jax"})
        if "measured_sweep" in item.fixturenames:
            shared = ["measured_sweep"]
        if _is_alone(item):
            shared = ["alone"]
        for name in shared[:1] if has_workers else ():
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without looking for garbage: nearly all objects of the imported modules stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Spare later collections the objects of all imports, of which there are a million: a test that
    counts resources collects several times."""
    # Options of this run are not those of a pytest that a test starts. The workers of pytest-xdist,
    # in which alone this function runs, have read them by now.
    os.environ.pop("PYTEST_ADDOPTS", None)
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries report what is never collected as leaked


def _place_in_run(item) -> tuple[bool, bool, bool]:
    return _runs_jax(item), _is_alone(item), item.get_closest_marker("slow") is None


def _is_alone(item) -> bool:
    return item.get_closest_marker("alone") is not None


def _runs_jax(item) -> bool:
    """True for tests that start JAX's threads in this process, which must not fork from then on."""
    return "jax" in _string_parameters(item) or item.get_closest_marker("jax") is not None


def _string_parameters(item) -> list[str]:
    """String parameters of the test, and those in tuples; an override is represented by its
    value."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    texts = [each for param in params for each in (param if isinstance(param, tuple) else (param,))]
    return [text.rpartition("=")[2] for text in texts if isinstance(text, str)]


@pytest.fixture(autouse=True)
def jobs_without_hydra(request, monkeypatch):
    """Let tests marked gpu read their jobs from the file, as where Hydra is not installed."""
    is_gpu_test = request.node.get_closest_marker("gpu") is not None
    monkeypatch.setattr(options, "is_gpu_test", is_gpu_test)


@pytest.fixture(autouse=True)
def restored_signal_handlers():
    """main() sets handlers that end its process, which in a test is that of all others too."""
    before = {number: signal.getsignal(number) for number in ENDINGS}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def is_soak(pytestconfig) -> bool:
    """True in `make soak`, where tests repeat more often than in `make check`."""
    return pytestconfig.getoption("markexpr") == "soak"


@pytest.fixture
def outputs(tmp_path, monkeypatch) -> Path:
    """A new outputs folder, for this process and its children."""
    folder = tmp_path / "outputs"
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_outputs(tmp_path_factory) -> Path:
    """An outputs folder whose stores are shared by many tests."""
    return tmp_path_factory.mktemp("shared") / "outputs"


@pytest.fixture
def prepared_job(shared_outputs, monkeypatch):
    """A function of overrides that composes a short job and prepares its data: (job, prepared)."""
    from fastloop.data.prepare_dataset import prepare

    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(shared_outputs))

    def make(*overrides: str):
        job = compose_short_job(*overrides)
        try:
            check_libraries(job.loader)
            return job, prepare(job.dataset, job.loader.store, job.collate.tolerant)
        except Unsupported as error:
            skip_without_library(error)
            raise

    return make


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def memory_group():
    """A function of a limit in MiB that returns the folder of a new memory cgroup."""
    with ExitStack() as stack:

        def make(limit_mib: int) -> Path:
            try:
                return stack.enter_context(memory_groups.memory_group(limit_mib))
            except OSError as error:
                pytest.skip(f"memory cgroups are not available: {error}")

        yield make


@pytest.fixture(scope="session")
def fashion_root() -> Path:
    """The folder with 900 real Fashion-MNIST images, stored next to the checkout."""
    root = Path(os.environ.get("FASTLOOP_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (root / "FashionMNIST" / "raw").is_dir():
        pytest.skip(f"no Fashion-MNIST files in {root}; FASTLOOP_TEST_DATA can name another folder")
    return root


@pytest.fixture(scope="session")
def measured_sweep(tmp_path_factory, empty_database) -> Path:
    """A working folder with a real sweep logged to MLflow; three of its jobs are unsupported."""
    folder = tmp_path_factory.mktemp("measured_sweep")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    settings = ["benchmark=all", "epochs=1", "trials=6", "torch_threads=1", *MYDATASET]
    jobs = ["loader=raw,preload,np_memmap", "device=cpu,cuda:99"]
    process = run_fastloop("-m", *jobs, *settings, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """An MLflow database without runs; creating its tables takes seconds, so it is done once."""
    path = folder_of_all_workers(tmp_path_factory) / "mlflow" / "mlflow.db"
    path.parent.mkdir(exist_ok=True)
    program = "import sys; from mlflow.tracking import MlflowClient\n"
    program += "MlflowClient(tracking_uri=f'sqlite:///{sys.argv[1]}').search_experiments()"
    with FileLock(f"{path}.lock"):
        if not path.exists():
            new = path.with_suffix(".new")
            subprocess.run([sys.executable, "-c", program, new], check=True, capture_output=True)
            new.rename(path)
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built once, from an sdist of a copy of the sources."""
    folder = folder_of_all_workers(tmp_path_factory) / "wheel"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            new = folder.with_suffix(".new")
            build_wheel(new)
            new.rename(folder)
    (path,) = folder.glob("dist/*.whl")
    return path


def folder_of_all_workers(tmp_path_factory) -> Path:
    """The temporary folder that pytest's concurrent workers share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture
def database(tmp_path, empty_database) -> Path:
    """An existing MLflow database in tmp_path/outputs for commands that run in tmp_path."""
    (tmp_path / "outputs").mkdir()
    return Path(shutil.copy(empty_database, tmp_path / "outputs"))
