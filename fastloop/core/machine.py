"""Description of the machine and the software, recorded with each result."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from PIL import features

from fastloop.core.cgroup import cpu_quota, usable_cores
from fastloop.core.fingerprints import fingerprint
from fastloop.core.optional_libraries import version_of

PACKAGE = Path(__file__).resolve().parents[1]
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


def load_average() -> float | None:
    """Mean number of runnable processes in the last minute; None if the system does not report
    it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def oom_kills() -> int:
    """Number of processes killed by the kernel for lack of memory; 0 if it is not reported."""
    try:
        match = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.M)
    except OSError:
        match = None
    return int(match.group(1)) if match else 0


def process_cpu_seconds() -> float:
    """User and system time of this process so far, without its children."""
    times = psutil.Process().cpu_times()
    return times.user + times.system


def cpu_seconds() -> float:
    """User and system time so far of this process and all its descendants, running and ended."""
    current, total = psutil.Process(), 0.0
    for process in (current, *current.children(recursive=True)):
        # A process that ends while it is asked is in its parent's children_user the next time.
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


class MemoryMapping(NamedTuple):
    """A range of mapped addresses of a process."""

    start: int
    stop: int
    is_file: bool
    """True if they are mapped to a file on a disk."""


def memory_mappings() -> list[MemoryMapping] | None:
    """All mapped addresses of this process, ascending; None if unknown."""
    try:
        text = Path("/proc/self/maps").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # Paths that begin like these have no file on a disk: they are shared memory of POSIX, of torch,
    # of memfd_create and of System V.
    in_memory = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")
    mappings = []
    # A path may hold characters at which splitlines would break it; its line ends are escaped.
    for line in filter(None, text.split("\n")):
        # proc_pid_maps(5): start-stop, permissions, offset, device, inode, and a path with blanks.
        row = line.split(maxsplit=5)
        start, stop = row[0].split("-")
        path = row[5] if len(row) == 6 else ""
        is_file = path.startswith("/") and not path.startswith(in_memory)
        mappings.append(MemoryMapping(int(start, 16), int(stop, 16), is_file))
    return mappings


@cache
def code_version() -> str:
    """Fingerprint of the names and texts of all .py, .c and .h files in fastloop's folder.

    An installed wheel has the native core as compiled only, which is not read; nor are yaml files,
    of which each job has the settings.
    """
    sources = sorted(path for suffix in ("py", "c", "h") for path in PACKAGE.rglob(f"*.{suffix}"))
    return fingerprint(*[(path.name, path.read_text(encoding="utf-8")) for path in sources])


@cache
def git_commit() -> str:
    """Commit of the checkout, with -dirty if its files differ; `unknown` outside a checkout."""
    # An environment inside the checkout of another project is in a repository, too: only one that
    # tracks these files is fastloop's.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    dirty = _git("diff-index", "--quiet", "HEAD") is None
    return (_git("rev-parse", "HEAD") or "unknown") + ("-dirty" if dirty else "")


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.decode(errors="replace").strip()


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
