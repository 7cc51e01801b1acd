"""Memory limits for some processes, by cgroups of version 1, which only root can make."""

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
    """The folder of a new group with that limit, page cache included. A process joins the group by
    writing its number to `cgroup.procs` in the folder. The exit waits until all members have ended.

    Raises OSError if no group can be made.
    """
    folder = Path(tempfile.mkdtemp(prefix="fastloop-", dir=_parent_group()))
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_mib << 20))
        yield folder
    finally:
        while (folder / "cgroup.procs").read_text():
            time.sleep(WAIT_S)
        folder.rmdir()


def _parent_group() -> Path:
    """The folder of the group to which this process belongs."""
    for line in MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return GROUPS / path.lstrip("/")
    raise OSError("there are no memory cgroups of version 1")
