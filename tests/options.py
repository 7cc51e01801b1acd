"""Options as the command line would build them, and which there are."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from fastloop.config import build_job, resource_folder
from fastloop.job import Job
from fastloop.types import Prepared, Unsupported

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = resource_folder("conf")
MYDATASET = ("dataset=mydataset", "dataset.count=203", "dataset.shape=[5,3]")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose_job(*overrides: str) -> Job:
    return build_job(OmegaConf.to_container(_composed(overrides), resolve=True))


@cache
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    """Not resolved yet: what it is in an environment shows as it is resolved."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def skip_without_its_library(why: Unsupported) -> None:
    """Skip where the reason names the command that installs what is absent."""
    if "pip install" in str(why):
        pytest.skip(str(why))


def refuses(job: Job, prepared: Prepared, settings: Sequence[str]) -> bool:
    """True where the loader says, as it is opened, which of these settings it does not have.

    An error where it refuses for any other reason: what is not set must never be in the way.
    """
    try:
        with job.loader.open(prepared, job.plan(0)):
            return False
    except Unsupported as why:
        skip_without_its_library(why)
        refusal = why
    assert str(refusal).partition("=")[0] in [one.partition("=")[0] for one in settings], refusal
    return True


def _file_system(folder: str) -> str:
    """The type of the file system that the folder lies on."""
    parts = [one for one in psutil.disk_partitions(all=True) if folder.startswith(one.mountpoint)]
    return max(parts, key=lambda one: len(one.mountpoint)).fstype if parts else "unknown"


FILE_SYSTEM = _file_system(os.path.realpath(tempfile.gettempdir()))
disk_only = pytest.mark.skipif(
    sys.platform != "linux" or FILE_SYSTEM in ("tmpfs", "ramfs", "zfs", "unknown"),
    reason=f"temporary files lie on {FILE_SYSTEM}, of which no page can be dropped or looked at",
)
