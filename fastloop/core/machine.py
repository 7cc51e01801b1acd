"""Describe the machine and the software; the description is recorded with each result."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import features

from fastloop.core.cgroup import cpu_quota, usable_cores
from fastloop.core.optional_libraries import version_of
from fastloop.core.source_fingerprint import code_version, git_commit

PACKAGES = (
    "fastloop",
    "torch",
    "torchvision",
    "tensordict",
    "numpy",
    "optree",
    "mlflow",
    "h5py",
    "tfrecord",
    "tensorflow-cpu",
    "tensorflow",
    "ffcv",
    "triton",
    "torch-tensorrt",
    "webdataset",
    "datasets",
    "torchdata",
    "pyarrow",
    "zarr",
    "pylance",
    "litdata",
    "torchcodec",
    "spdl",
    "turboloader",
    "nvidia-dali-cuda120",
    "mosaicml-streaming",
    "grain",
    "jax",
    "dm-tree",
    "crc32c",
    "protobuf",
    "pillow",
    "simplejpeg",
    "opencv-python-headless",
)
"""The packages that may matter for a result, by their names for pip."""


@cache
def describe_machine() -> dict[str, Any]:
    """Machine, cores, memory, device, versions and commit, for result.json."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores_usable": usable_cores(),
        "cores": os.cpu_count(),
        "cgroup_quota": cpu_quota(),
        "memory_gib": _memory_gib(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": {name: version_of(name) for name in PACKAGES}
        | {"libjpeg-turbo in Pillow": features.version_feature("libjpeg_turbo")},
        "git_commit": git_commit(),
        "code": code_version(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
