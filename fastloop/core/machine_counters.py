"""Readings of the system's counters: CPU time of cores and processes, pressure, load, and the
number of processes that were killed for lack of memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from fastloop.core.process_times import ProcessTimes, read_processes, shows_kernel
from fastloop.core.spans import now_ns, wall_ms

PROC = Path("/proc")
LEAST_SECONDS = 0.2
"""CPU time is reported only for stretches of at least this many seconds: the system counts CPU time
in ticks of 10 ms, a twentieth of this value."""
Resource = Literal["cpu", "io", "memory"]
RESOURCES: tuple[Resource, ...] = ("cpu", "io", "memory")


@dataclass(frozen=True, kw_only=True)
class Counters:
    """A reading of the system's counters, which all count from the start of the system."""

    root: int
    """Process id of this command; the work of its descendants is its own work, too."""
    cores: int
    """Number of cores on which this process may run."""
    total_s: float
    """Time of all these cores, idle or not; 0 if the system does not report it."""
    busy_s: float
    stolen_s: float
    includes_kernel: bool
    """True if `processes` lists the kernel threads and busy_s contains all of their time."""
    waited_s: dict[Resource, float]
    """Seconds in which some process waited for the resource, see `_read_pressure`."""
    processes: dict[int, ProcessTimes]


def process_begun_ns() -> int:
    """When this process began, on the clock of `now_ns`. A time that is measured from there
    includes its imports."""
    # The system knows the time of creation on the wall clock only.
    age_ms = wall_ms() - 1e3 * psutil.Process().create_time()
    return now_ns() - int(1e6 * age_ms)


def read_counters(
    proc: Path = PROC, root: int | None = None, cpus: Collection[int] | None = None
) -> Counters:
    """Read the counters now.

    root: id of the process that has all of this command's processes as descendants; None: this
    process or, under a launcher that sets RANK, its parent, the launcher's agent.
    cpus: numbers of the cores on which this process may run; None: as the system says.
    """
    # The processes are read before the totals. Between two readings, the totals and this process's
    # time therefore both grow by the time of one reading, which cancels in their difference.
    cpus = _usable_cpus() if cpus is None else cpus
    processes = read_processes(proc)
    times, is_all = _read_cpus(proc, cpus)
    total_s, busy_s, stolen_s = (sum(column) for column in zip(*times, strict=True))
    return Counters(
        root=_own_root() if root is None else root,
        cores=len(times),
        total_s=total_s,
        busy_s=busy_s,
        stolen_s=stolen_s,
        includes_kernel=shows_kernel(processes) and is_all,
        waited_s=_read_pressure(proc),
        processes=processes,
    )


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
    current = psutil.Process()
    total = 0.0
    for process in (current, *current.children(recursive=True)):
        # A process that ends meanwhile is part of its parent's children_user at the next reading.
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _usable_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _own_root() -> int:
    """Id of the process from which all processes of this command descend."""
    # Under torchrun, or another launcher that sets RANK, the other ranks of this machine belong to
    # the command too; they are children of the launcher's agent.
    parent = os.getppid()
    return parent if "RANK" in os.environ and parent > 1 else os.getpid()


class _CoreTimes(NamedTuple):
    """Seconds of a core since the machine was started."""

    total_s: float
    busy_s: float
    stolen_s: float
    """Time in which the core was another virtual machine's."""


def _read_cpus(proc: Path, cpus: Collection[int]) -> tuple[list[_CoreTimes], bool]:
    """The times of each of these cores; and True if the machine has no others."""
    lines = []
    # LXCFS counts the time of this container only. A figure without the other programs of the
    # machine would be worse than none.
    if not _is_of_container(proc):
        # Only Linux has /proc/stat.
        with contextlib.suppress(OSError):
            lines = (proc / "stat").read_text().splitlines()
    rows = [line.split() for line in lines if re.match(r"cpu\d", line)]
    used = [fields for name, *fields in rows if int(name[3:]) in cpus]
    if not used:
        return [_CoreTimes(0.0, 0.0, 0.0)] * len(cpus), False
    return [_sum_ticks(fields) for fields in used], len(used) == len(rows)


def _sum_ticks(fields: Sequence[str]) -> _CoreTimes:
    """The times of a core, from its row in /proc/stat."""
    # proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; old kernels have fewer.
    # The fields after these, guest and guest_nice, are contained in user and nice already.
    hertz = os.sysconf("SC_CLK_TCK")
    user, nice, system, idle, waiting, hard, soft, stolen = (
        int(field) / hertz for field in [*fields, *["0"] * 8][:8]
    )
    # Interrupts count as idle: they may be this command's own, and no process is charged for them.
    busy = user + nice + system
    total = busy + idle + waiting + hard + soft + stolen
    return _CoreTimes(total_s=total, busy_s=busy, stolen_s=stolen)


def _is_of_container(proc: Path) -> bool:
    """True if LXCFS shows the time of the container in place of the machine's."""
    with contextlib.suppress(OSError):
        return f" {proc}/stat fuse.lxcfs".encode() in (proc / "mounts").read_bytes()
    return False


def _read_pressure(proc: Path) -> dict[Resource, float]:
    """Seconds so far in which some process waited, by resource; empty before Linux 4.20.

    Linux's pressure stall information (Documentation/accounting/psi.rst), the line `some` of each
    file: `some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>`.
    """
    waited_s: dict[Resource, float] = {}
    for resource in RESOURCES:
        # A kernel without PSI has no such file, and one with psi=0 raises on reading.
        with contextlib.suppress(OSError, ValueError):
            first = (proc / "pressure" / resource).read_text().splitlines()[0]
            waited_s[resource] = int(first.rpartition("total=")[2]) / 1e6
    return waited_s
