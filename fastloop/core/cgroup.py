"""CPU cores and memory available to this process under its cgroups.

Version 1 has a hierarchy for each controller, mounted at /sys/fs/cgroup/<controller>; version 2 has
one for all controllers. A group is bound by its own limits and by those of every group above it.
See Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
USAGE_OF_LIMIT = {
    "memory.max": "memory.current",
    "memory.limit_in_bytes": "memory.usage_in_bytes",
}
"""Name of the file with a cgroup's memory limit -> name of the file with its memory use; the first
row is version 2 (cgroup-v2.rst, "Memory Interface Files"), the second version 1."""
MOST_THROTTLED = 0.05
"""A quota makes a loop slow if it throttled the loop in more than this share of its periods
(`cpu.stat`)."""


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, limited by the cgroup's quota."""
    affinity = count_affinity()
    # The number is rounded up: with a quota of 1.5 a second thread still gets half of a core.
    quota = cpu_quota()
    return min(affinity, max(1, math.ceil(quota))) if quota else affinity


def available_cores() -> float:
    """CPU seconds per second that this process can get: like `usable_cores`, but a quota of 1.5
    stays 1.5."""
    affinity = count_affinity()
    quota = cpu_quota()
    return min(affinity, quota) if quota else affinity


def count_affinity() -> int:
    """Number of cores on which the system lets this process run."""
    # macOS has no affinity.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class QuotaPeriods(NamedTuple):
    """Numbers of periods of a CPU quota."""

    throttled: int
    """Periods in which the group used up its quota, and was stopped until the next one."""
    total: int

    @property
    def share_throttled(self) -> float:
        """Share of the periods that were throttled; 0 if there was none."""
        return self.throttled / self.total if self.total else 0.0

    def since(self, before: QuotaPeriods) -> QuotaPeriods:
        """The growth since an earlier reading."""
        return QuotaPeriods(self.throttled - before.throttled, self.total - before.total)


def count_periods(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> QuotaPeriods:
    """The periods so far of the process's cgroup that was throttled most; both numbers are 0 if no
    group has a quota."""
    counts = [_read_periods(folder) for folder in _groups(cgroups, membership, "cpu")]
    return max(counts, default=QuotaPeriods(0, 0))


@cache
def cpu_quota() -> float | None:
    """The lowest CPU quota of this process's cgroups, in cores; None: no limit. The quota is read
    at the first call only."""
    return min(cpu_quotas(), default=None)


def cpu_quotas(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[float]:
    """CPU quotas in cores of the cgroups, version 1 or 2, that this process is a member of."""
    for folder in _groups(cgroups, membership, "cpu"):
        # cpu.max is version 2: "<quota> <period>", both in microseconds, the quota "max" without a
        # limit. Version 1 has a file for each number, and the quota -1 without a limit.
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            quota, period = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota not in ("max", None) and period and int(quota) > 0:
            yield int(quota) / int(period)


# The result is cached, because reading the files takes 0.2 ms of the 1 ms between two epochs.
@cache
def usable_memory_bytes() -> int:
    """Bytes that this process may use: the machine's memory, limited by the process's cgroups.

    Limits are read at the first call only.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *memory_limits()])


def memory_limits(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[int]:
    """Limits in bytes of the memory cgroups, version 1 or 2, that this process is a member of."""
    return (limit for limit, _ in _memory_use(cgroups, membership))


def memory_left(cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> Iterator[int]:
    """Bytes left below the limit of each cgroup of `memory_limits`.

    Pages of the page cache don't count as used: the kernel drops them when memory is short.
    """
    return (max(0, limit - used) for limit, used in _memory_use(cgroups, membership))


def _memory_use(cgroups: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """(limit, used bytes without pages of files) of each cgroup with a limit, innermost first."""
    for folder in _groups(cgroups, membership, "memory"):
        for limit_file, usage_file in USAGE_OF_LIMIT.items():
            limit = _number(folder / limit_file)
            if limit is not None:
                yield limit, (_number(folder / usage_file) or 0) - _file_pages(folder)


def _groups(cgroups: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's cgroup and of all above it, innermost first, for each hierarchy that
    may have the controller."""
    try:
        lines = os.fsdecode(membership.read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        # "<hierarchy>:<controllers>:<path>" (cgroups(7)). The one hierarchy of version 2 may have
        # any controller; its line is "0::<path>". Hybrid systems have lines of both kinds.
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") and controllers:
            continue
        mount = cgroups / controller if controllers else cgroups
        group = mount / path.lstrip("/")
        # Limits of the groups above bind too. In a container the path may name a group that the
        # mounted hierarchy does not show; its parents up to the mount point are read all the same.
        for folder in [group, *group.parents]:
            if folder == mount or mount in folder.parents:
                yield folder


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # another version, or "max"
        return None


def _read_periods(folder: Path) -> QuotaPeriods:
    """The periods of one cgroup; the file is the same in both versions."""
    try:
        figures = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
    except (OSError, ValueError):
        return QuotaPeriods(0, 0)
    return QuotaPeriods(int(figures.get("nr_throttled", 0)), int(figures.get("nr_periods", 0)))


def _file_pages(folder: Path) -> int:
    """Bytes of the page cache charged to a cgroup and to the cgroups below it."""
    try:
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    # Version 1 has separate counters that include the groups below.
    prefix = "total_" if "total_active_file" in figures else ""
    return sum(int(figures.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
