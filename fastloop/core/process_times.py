"""CPU time of each process, as the system counts it: in one reading (`read_processes`), and between
two readings (`seconds_spent`)."""

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
    """CPU seconds of a process so far."""

    parent: int
    name: str
    started: int
    """Start time in clock ticks since the system's start; it differs between processes that had the
    same id one after the other."""
    own_s: float
    ended_children_s: float
    """CPU seconds of the ended children that the process waited for, and of their ended
    children."""


def read_processes(proc: Path) -> dict[int, ProcessTimes]:
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


def shows_kernel(processes: Mapping[int, ProcessTimes]) -> bool:
    """True if kernel threads are visible; in a container with its own process ids they are not."""
    return KERNEL in processes and processes[KERNEL].name == "kthreadd"


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
