"""Jobs composed as on the command line, names of options, and skips for absent libraries.

The process that only starts pytest's workers imports it, too, and needs no torch.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import psutil
import pytest

from fastloop.config.catalogue import resource_folder
from fastloop.core.types import Unsupported

if TYPE_CHECKING:
    from fastloop.core.prepared_data import PreparedData
    from fastloop.trial.job import Job

SUPPORT = Path(__file__).resolve().parent
REPOSITORY = SUPPORT.parents[1]
CONF = resource_folder("conf")
ALL_LIBRARIES = "FASTLOOP_TEST_ALL_LIBRARIES"
GPU_JOBS = REPOSITORY / "tests" / "gpu" / "gpu_jobs.json"
"""Jobs of the tests marked gpu, which run without Hydra; written by `python
tests/gpu/record_gpu_jobs.py`."""
NOT_EVERYWHERE = ("nvidia-dali", "mosaicml-streaming", "tensorflow", "jax", "ffcv")
"""Packages that an environment with all libraries lacks: they are large or compiled for minutes,
or exclude the versions of others. Their tests run in environments of their own, see
tests/processes/test_environment_sweeps.py, and wherever they are installed."""
is_gpu_test = False
"""True while a test marked gpu runs."""
gpu_overrides: set[tuple[str, ...]] | None = None
"""Overrides of all jobs of the tests marked gpu, while record_gpu_jobs.py collects them."""
MYDATASET = ("dataset=mydataset", "dataset.count=203", "dataset.shape=[5,3]", "min_window_s=0")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def store_of(loader: str) -> str:
    """Name of the loader's store; empty for a loader that reads the dataset itself."""
    text = (CONF / "loader" / f"{loader}.yaml").read_text()
    return "".join(re.findall(r"/store@store: (\w+)", text))


def compose_job(*overrides: str) -> Job:
    """The job of these overrides; a test marked gpu reads it from GPU_JOBS."""
    if is_gpu_test and gpu_overrides is None:
        from experiments.lib.job_file import read_job

        return read_job(GPU_JOBS, *overrides)
    if is_gpu_test:
        gpu_overrides.add(overrides)
    from fastloop.config import compose

    return compose.compose_job(*overrides)


def compose_short_job(*overrides: str) -> Job:
    """The job, whose windows are no longer than its epochs, unless an override says so."""
    job = compose_job(*overrides)
    is_given = any(override.startswith("min_window_s=") for override in overrides)
    return job if is_given else replace(job, min_window_s=0.0)


def require_cuda() -> None:
    """Skip without a CUDA device.

    To be called after the test has composed its jobs, which checks that GPU_JOBS has them.
    """
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip because something is not installed; fail where all libraries must be, as in CI."""
    if any(name in reason for name in NOT_EVERYWHERE):
        pytest.skip(reason)
    if os.environ.get(ALL_LIBRARIES) == "1":
        pytest.fail(f"{ALL_LIBRARIES}=1, but {reason}")
    pytest.skip(reason)


def skip_without_library(error: Unsupported) -> None:
    """Skip where the error names the command that installs an absent library."""
    if "pip install" in str(error):
        skip_or_fail(str(error))


def require_library(name: str) -> ModuleType:
    """Import the module; skip where it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        skip_or_fail(f"{name} is not installed: {error}")


def rejects_settings(job: Job, prepared: PreparedData, settings: Sequence[str]) -> bool:
    """True if the gate, or the loader when it is opened, rejects one of these settings.

    Fails if they reject a setting that is not among them.
    """
    from fastloop.trial.support import check_plan

    try:
        check_plan(job)
        with job.loader.open(prepared, job.plan(0)):
            return False
    except Unsupported as error:
        skip_without_library(error)
        message = error
    assert str(message).partition("=")[0] in [setting.partition("=")[0] for setting in settings], (
        message
    )
    return True


def _file_system(folder: str) -> str:
    """Type of the file system that holds the folder."""
    partitions = [
        partition
        for partition in psutil.disk_partitions(all=True)
        if folder.startswith(partition.mountpoint)
    ]
    if not partitions:
        return "unknown"
    return max(partitions, key=lambda partition: len(partition.mountpoint)).fstype


FILE_SYSTEM = _file_system(os.path.realpath(tempfile.gettempdir()))
disk_only = pytest.mark.skipif(
    sys.platform != "linux" or FILE_SYSTEM in ("tmpfs", "ramfs", "zfs", "unknown"),
    reason=f"temporary files are on {FILE_SYSTEM}, whose cached pages can't be dropped or counted",
)
