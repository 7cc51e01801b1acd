"""Readings of the system's counters: CPU time of all cores and of each process, pressure, load, and
processes that were killed for lack of memory."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from fastloop.core.spans import now_ns, wall_ms

PROC = Path("/proc")
LEAST_SECONDS = 0.2
"""No figure of CPU time rests on a shorter stretch: the system counts CPU time in ticks of 10 ms, a
twentieth of it."""
INIT = 1
"""Process id of the first process, which waits for the ended children of others."""
KERNEL = 2
"""Process id of Linux's kthreadd, the parent of all kernel threads."""

Resource = Literal["cpu", "io", "memory"]
RESOURCES: tuple[Resource, ...] = ("cpu", "io", "memory")


@dataclass(frozen=True, kw_only=True)
class ProcessTimes:
    """CPU seconds of a process so far."""

    parent: int
    name: str
    started: int
    """Differs between processes that had the same id one after the other."""
    own_s: float
    ended_children_s: float
    """CPU seconds of the ended children that it waited for, and of their ended children."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """A reading of the system's counters, all of them since its start."""

    root: int
    """Process id of this command; the work of its descendants is its own work, too."""
    cores: int
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
    """The time on `now_ns`'s clock when this process began, so that its imports count."""
    # The system knows the time of creation on the wall clock only.
    age_ms = wall_ms() - 1e3 * psutil.Process().create_time()
    return now_ns() - int(1e6 * age_ms)


def read_counters(
    proc: Path = PROC, root: int | None = None, cpus: Collection[int] | None = None
) -> Counters:
    """Read the counters now.

    root: id of the process that has all of this command's processes as descendants; None: this
    process, or its launcher's agent.
    cpus: numbers of the cores on which this process may run; None: as the system says.
    """
    # The processes are read before the totals. So between two readings, the totals and this process
    # both grow by the time of one reading, which cancels when other programs' time is computed.
    cpus = _usable_cpus() if cpus is None else cpus
    processes = _read_processes(proc)
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
        # A process that ends while it is asked is in its parent's children_user the next time.
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def shows_kernel(processes: Mapping[int, ProcessTimes]) -> bool:
    """True if kernel threads are visible; in a container with its own process ids they are not."""
    return KERNEL in processes and processes[KERNEL].name == "kthreadd"


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


def _read_processes(proc: Path) -> dict[int, ProcessTimes]:
    """The processes that this one may see, by their ids."""
    hertz = os.sysconf("SC_CLK_TCK")
    found = {}
    names = os.listdir(proc) if proc.exists() else ()
    for name in filter(str.isdigit, names):
        try:
            # Path would take three times as long as open(); there may be thousands of processes.
            with open(f"{proc}/{name}/stat", "rb") as file:
                text = file.read().decode(errors="replace")
        # The process has ended since the folder was listed.
        except OSError:
            continue
        # The name is in parentheses, and may contain parentheses and blanks itself: the fields
        # begin after the last one. Numbers as in proc_pid_stat(5), less 3: 4 ppid, 14 to 17 utime,
        # stime, cutime, cstime, 22 starttime.
        before, _, after = text.rpartition(") ")
        fields = after.split()
        user, system, children_user, children_system = (int(each) / hertz for each in fields[11:15])
        found[int(name)] = ProcessTimes(
            parent=int(fields[1]),
            name=_printable_name(before.partition("(")[2]),
            started=int(fields[19]),
            own_s=user + system,
            ended_children_s=children_user + children_system,
        )
    return found


def _printable_name(name: str) -> str:
    """A process's name for a line of text: whatever can't be printed separates words."""
    # A program may give itself any name (prctl(2), PR_SET_NAME), also with a line feed.
    return " ".join("".join(each if each.isprintable() else " " for each in name).split())


def seconds_spent(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes]
) -> dict[int, float]:
    """CPU seconds between two readings of each process that is still alive, and of its ended
    children."""
    # When a child ends, its parent's counter of ended children grows by all that the child ever
    # used. The part before the first reading, which that reading knows, is subtracted again.
    ended_s: defaultdict[int, float] = defaultdict(float)
    for pid, times in before.items():
        if pid not in after or after[pid].started != times.started:
            ended_s[_living_ancestor(pid, before, after)] += times.own_s + times.ended_children_s
    spent = {}
    for pid, times in after.items():
        known = before.get(pid)
        if known is None or known.started != times.started:
            spent[pid] = times.own_s + times.ended_children_s
        else:
            # Negative if a parent has ignored SIGCHLD: then no counter receives the child's time.
            children_s = times.ended_children_s - known.ended_children_s - ended_s[pid]
            spent[pid] = times.own_s - known.own_s + max(0.0, children_s)
    return spent


def _living_ancestor(
    pid: int, before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes]
) -> int:
    """The nearest ancestor that is alive at the second reading; 0 if there is none."""
    # Equal start times: the id may have been given to another process meanwhile.
    while pid in before:
        pid = before[pid].parent
        if pid in after and pid in before and after[pid].started == before[pid].started:
            return pid
    return 0


def process_tree(processes: Mapping[int, ProcessTimes], root: int) -> set[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, times in processes.items():
        children.setdefault(times.parent, []).append(pid)
    found = set()
    waiting = [root] if root in processes else []
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += children.get(pid, [])
    return found
