"""CPU time of each process, as the system counts it.

`read_processes` makes one reading, and `seconds_spent` returns the CPU time between two readings.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INIT = 1
"""Process id of the first process, which waits for the ended children of others."""
KERNEL = 2
"""Process id of Linux's kthreadd, the parent of all kernel threads."""


@dataclass(frozen=True, kw_only=True)
class ProcessTimes:
    """A process in one reading, with its CPU seconds so far."""

    parent: int
    """Process id of the parent."""
    name: str
    """Name of the process, in printable characters."""
    started: int
    """Start time in clock ticks since the system's start. Processes that had the same id one after
    the other differ in it."""
    own_s: float
    """CPU seconds of the process itself."""
    ended_children_s: float
    """CPU seconds of the ended children that the process waited for, and of their ended
    children."""


def read_processes(proc: Path) -> dict[int, ProcessTimes]:
    """The processes that this process may see, by process id.

    proc: folder of Linux's proc file system; the result is empty if there is no such folder.
    """
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
        # The name is in parentheses, and may itself contain parentheses and blanks, so the fields
        # begin after the last parenthesis. Field n of proc_pid_stat(5) is fields[n - 3]: 4 is ppid,
        # 14 to 17 are utime, stime, cutime and cstime, 22 is starttime.
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
    """A process's name for a line of text, with blanks for characters that can't be printed."""
    # A program may give itself any name (prctl(2), PR_SET_NAME), also with a line feed.
    return " ".join("".join(each if each.isprintable() else " " for each in name).split())


def shows_kernel(processes: Mapping[int, ProcessTimes]) -> bool:
    """True if kernel threads are visible; in a container with its own process ids they are not."""
    return KERNEL in processes and processes[KERNEL].name == "kthreadd"


def seconds_spent(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes]
) -> dict[int, float]:
    """CPU seconds of each process between two readings, by process id.

    Only processes of the second reading are included, each with the seconds of its ended children.
    """
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
            # The difference is negative if a parent has ignored SIGCHLD, because no counter then
            # receives the child's time.
            children_s = times.ended_children_s - known.ended_children_s - ended_s[pid]
            spent[pid] = times.own_s - known.own_s + max(0.0, children_s)
    return spent


def _living_ancestor(
    pid: int, before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes]
) -> int:
    """The nearest ancestor that is alive at the second reading; 0 if there is none."""
    # The start times are compared, because another process may have got the id meanwhile.
    while pid in before:
        pid = before[pid].parent
        if pid in after and pid in before and after[pid].started == before[pid].started:
            return pid
    return 0


def process_tree(processes: Mapping[int, ProcessTimes], root: int) -> set[int]:
    """The ids of the process `root` and all its descendants; empty if there is no such process."""
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
