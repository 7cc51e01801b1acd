"""Limits of memory for some processes: cgroups of version 1, which only root makes."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")
MEMBERSHIP = Path("/proc/self/cgroup")
WAIT_S = 0.1


@contextmanager
def memory_group(limit_mib: int) -> Iterator[Path]:
    """The folder of a new one whose members may have so much, page cache included. A process is a
    member once its number is written to `cgroup.procs` there; at the end all are waited for.

    Raises OSError where none can be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="fastloop-", dir=_own()))
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
        yield folder
    finally:
        while (folder / "cgroup.procs").read_text():
            time.sleep(WAIT_S)
        folder.rmdir()


def _own() -> Path:
    """The folder of the one that this process is a member of."""
    for line in MEMBERSHIP.read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if "memory" in kinds.split(","):
            return GROUPS / path.lstrip("/")
    raise OSError("there are no memory cgroups of version 1")
