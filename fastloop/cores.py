"""How many cores there are for this process."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use: the affinity, cut by the cgroup's quota."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = cgroup_quota(Path("/sys/fs/cgroup/cpu.max"))
    return min(affinity, max(1, math.ceil(quota))) if quota else affinity


def cgroup_quota(path: Path) -> float | None:
    """Cores' worth of time that a cgroup v2 grants; None: no limit."""
    try:
        granted, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if granted == "max" else int(granted) / int(period)
