"""Options as the command line would build them, and which there are."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fastloop.config import build_job, resource_folder
from fastloop.job import Job

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = resource_folder("conf")
MYDATASET = ("dataset=mydataset", "dataset.count=203", "dataset.shape=[5,3]")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose_job(*overrides: str) -> Job:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=list(overrides))
    return build_job(OmegaConf.to_container(cfg, resolve=True))


def _file_system(folder: str) -> str:
    """The type of the file system that the folder lies on."""
    parts = [one for one in psutil.disk_partitions(all=True) if folder.startswith(one.mountpoint)]
    return max(parts, key=lambda one: len(one.mountpoint)).fstype if parts else "unknown"


FILE_SYSTEM = _file_system(os.path.realpath(tempfile.gettempdir()))
disk_only = pytest.mark.skipif(
    sys.platform != "linux" or FILE_SYSTEM in ("tmpfs", "ramfs", "zfs", "unknown"),
    reason=f"temporary files lie on {FILE_SYSTEM}, of which no page can be dropped or looked at",
)
