"""What a result must say about the machine and the software it was measured with."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import features

from fastloop.files import fingerprint
from fastloop.limits import cgroup_quota, usable_cores
from fastloop.ranks import device_index
from fastloop.types import Unsupported

PACKAGES = (
    *("fastloop", "torch", "torchvision", "tensordict", "numpy", "optree", "mlflow"),
    *("h5py", "tfrecord", "tensorflow-cpu", "tensorflow", "ffcv", "triton", "torch-tensorrt"),
    *("pillow", "simplejpeg", "opencv-python-headless"),
)


def resolve_device(name: str) -> torch.device:
    """The device of that name, auto: one a rank; raises Unsupported where this machine has none."""
    if name == "auto":
        # is_available first: a CUDA build names its accelerator also where there is none
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return torch.device("cpu") if found is None else torch.device(found.type, device_index())
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise Unsupported(f"device={name}: {torch.cuda.device_count()} CUDA devices are here")
    if device.type == "cuda" and device.index is None:  # threads have a current device of their own
        device = torch.device("cuda", device_index())
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise Unsupported(f"device={name}: no MPS device is here")
    return device


@cache
def describe() -> dict[str, Any]:
    """Machine, cores, memory, device, versions and commit, for result.json."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores_usable": usable_cores(),
        "cores": os.cpu_count(),
        "cgroup_quota": cgroup_quota(Path("/sys/fs/cgroup/cpu.max")),
        "memory_gib": _memory_gib(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "versions": {name: _version(name) for name in PACKAGES}
        | {"libjpeg-turbo in Pillow": features.version_feature("libjpeg_turbo")},
        "git_commit": git_commit(),
        "code": code_version(),
    }


def load_average() -> float | None:
    """Runnable processes over the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        found = None
    return int(found.group(1)) if found else 0


def own_cpu_seconds() -> float:
    """User and system time of this process so far, without its children."""
    own = psutil.Process().cpu_times()
    return own.user + own.system


def cpu_seconds() -> float:
    """User and system time of this process and all below it so far, living and ended."""
    here, total = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def file_mappings() -> list[tuple[int, int]] | None:
    """Address ranges of this process that a file on a disk lies behind; None where unknown."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    in_memory = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")
    rows = [line.split(maxsplit=5) for line in lines]
    ranges = [
        row[0].split("-")
        for row in rows
        if len(row) == 6 and row[5].startswith("/") and not row[5].startswith(in_memory)
    ]
    return [(int(start, 16), int(stop, 16)) for start, stop in ranges]


@cache
def code_version() -> str:
    """Changes with any line of fastloop's own modules, installed or not."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return fingerprint(*[(path.name, path.read_text()) for path in sources])


@cache
def git_commit() -> str:
    """The checkout's commit, with -dirty where its files differ; `unknown` outside of one."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return "unknown"  # an environment inside another project's checkout, say
    dirty = _git("diff-index", "--quiet", "HEAD") is None
    return (_git("rev-parse", "HEAD") or "unknown") + ("-dirty" if dirty else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_gib() -> float | None:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
