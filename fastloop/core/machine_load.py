"""Measure the load that other programs put on the machine during a measurement.

The machine is quiet if this load is too small to change a figure. The difference of two readings of
the system's counters, before and after a stretch of time, is the CPU time that all programs took in
between. The time of this command's own processes is subtracted. Processes that ended in between are
included: Linux adds the time of an ended child to the parent that waited for it (proc(5): cutime).
Kernel threads belong to no program, because much of their work is done for the program that reads
files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field

from pydantic.dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.machine_counters import LEAST_SECONDS, Counters, Resource, read_counters
from fastloop.core.process_times import (
    INIT,
    KERNEL,
    process_tree,
    seconds_spent,
    shows_kernel,
)

QUIET_SHARE = 0.05
"""Maximum share of the cores that other programs use on a quiet machine. A job that keeps all cores
busy loses that share. All jobs of a round lose about the same, so their ratios change by less than
the 2 % of stats.MINIMUM_EFFECT. The programs of an idle desktop use less than this share. In a
stretch of one second on two cores, the measured use is right within 0.02 cores."""
MOST_MEMORY_PRESSURE = 0.05
"""Maximum share of the time in which some program waits for memory on a quiet machine."""
MOST_NAMES = 3
"""Maximum number of programs that are named."""
LEAST_NAMED_SHARE = 0.01
"""Programs that used at most this share of the cores are not named."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The use of the machine by other programs in a stretch of time."""

    seconds: float
    """Length of the stretch; 0 if the two readings can't be compared."""
    cores: int
    """Number of cores on which this process may run; the figures below refer to these cores."""
    other_cores: float | None
    """CPU time of other programs per second. None: the system does not report this time, or the
    stretch is shorter than LEAST_SECONDS."""
    stolen_cores: float = 0.0
    """CPU time per second that the host of this virtual machine gave to other machines."""
    pressure: dict[Resource, float] = field(default_factory=dict)
    """Resource -> share of the time in which some program of any user waited for it (Linux's
    pressure stall information); empty if the kernel does not report pressure."""
    busiest: dict[str, float] = field(default_factory=dict)
    """Name of a program -> number of cores that it used; only the busiest other programs, in
    descending order."""

    @property
    def foreign_cores(self) -> float | None:
        """Cores that others took, on this machine or on the host of a virtual one; None if that is
        unknown."""
        return None if self.other_cores is None else self.other_cores + self.stolen_cores

    @property
    def is_quiet(self) -> bool | None:
        """True if others used too little to change a figure; None if that is unknown."""
        if self.foreign_cores is None:
            return None
        has_cores = self.foreign_cores <= QUIET_SHARE * self.cores
        return has_cores and self.pressure.get("memory", 0.0) <= MOST_MEMORY_PRESSURE


@dataclass(frozen=True, kw_only=True)
class LoadSummary:
    """The load during all stretches of a measurement, such as the trials of a sweep."""

    stretches: int
    """Number of stretches with a known load."""
    busy: int
    """Number of these stretches that were not quiet."""
    cores: int
    """Number of cores on which this process may run."""
    other_cores: float | None
    """CPU time of other programs per second, the median over the stretches; None: no stretch has a
    known load."""
    most_other_cores: float | None
    """The highest CPU time of other programs per second of all stretches; None: as above."""
    stolen_cores: float = 0.0
    """CPU time per second that the host of a virtual machine gave to others, the highest of all
    stretches."""
    memory_pressure: float = 0.0
    """Share of the time in which some program waited for memory, the highest of all stretches."""
    busiest: tuple[str, ...] = ()
    """Names of the programs that used most CPU time in the stretches that were not quiet."""

    @property
    def is_quiet(self) -> bool | None:
        """True if most stretches were quiet; None if that is unknown."""
        return 2 * self.busy < self.stretches if self.stretches else None


def summarize_loads(loads: Sequence[Load | None]) -> LoadSummary | None:
    """The summary of these loads; None if no load was recorded, as in older files."""
    recorded = [load for load in loads if load is not None]
    if not recorded:
        return None
    known = [load for load in recorded if load.foreign_cores is not None]
    taken = [load.other_cores or 0.0 for load in known]
    busy = [load for load in known if not load.is_quiet]
    used: defaultdict[str, float] = defaultdict(float)
    for load in busy:
        for name, used_cores in load.busiest.items():
            used[name] += used_cores * load.seconds
    return LoadSummary(
        stretches=len(known),
        busy=len(busy),
        cores=recorded[0].cores,
        other_cores=stats.median(taken) if taken else None,
        most_other_cores=max(taken, default=None),
        stolen_cores=max((load.stolen_cores for load in known), default=0.0),
        memory_pressure=max((load.pressure.get("memory", 0.0) for load in known), default=0.0),
        busiest=tuple(_busiest_first(used)),
    )


class LoadWatch:
    """The loads of consecutive stretches of time, each at least LEAST_SECONDS long.

    If the system does not report CPU time, each stretch has a load that is not known.
    """

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self._before = read_counters()

    def end_stretch(self) -> None:
        """End the current stretch and begin the next one; a stretch that is too short continues."""
        now = read_counters()
        load = load_between(self._before, now)
        # If the system reports no total time, no stretch is ever long enough. Its load is then
        # recorded as unknown, so that there is a summary.
        if load.seconds >= LEAST_SECONDS or not now.total_s:
            self.loads.append(load)
            self._before = now

    def summary(self) -> LoadSummary | None:
        """The summary of all stretches, the last of which ends here; None if all were too short."""
        self.end_stretch()
        return summarize_loads(self.loads)


def load_between(before: Counters, after: Counters) -> Load:
    """The load that programs other than this command caused between two readings."""
    cores = after.cores
    total_s = after.total_s - before.total_s
    # In some sandboxes the counters stand still. The number of cores may also change meanwhile, and
    # sums over different cores have no meaningful difference.
    if total_s <= 0 or before.cores != cores:
        return Load(seconds=0.0, cores=cores, other_cores=None)
    seconds = total_s / cores
    others_s, programs_s = _seconds_of_others(before, after)
    is_long = seconds >= LEAST_SECONDS
    used = {name: spent_s / seconds for name, spent_s in programs_s.items()}
    named = [name for name in _busiest_first(used) if used[name] > LEAST_NAMED_SHARE * cores]
    return Load(
        seconds=seconds,
        cores=cores,
        # Processes and totals are read one after the other, and in ticks of 10 ms. So the value may
        # lie outside of the possible range, to which it is limited.
        other_cores=min(float(cores), max(0.0, others_s / seconds)) if is_long else None,
        stolen_cores=max(0.0, after.stolen_s - before.stolen_s) / seconds,
        pressure={
            name: min(1.0, max(0.0, waited_s - before.waited_s[name]) / seconds)
            for name, waited_s in after.waited_s.items()
            if name in before.waited_s
        },
        busiest={name: round(used[name], 3) for name in named} if is_long else {},
    )


def _seconds_of_others(before: Counters, after: Counters) -> tuple[float, dict[str, float]]:
    """CPU seconds between two readings: of all other programs, and of each by its name."""
    spent = seconds_spent(before.processes, after.processes)
    own = process_tree(after.processes, after.root)
    kernel = process_tree(after.processes, KERNEL) if shows_kernel(after.processes) else set()
    # The counters of kernel threads span all cores, but busy_s spans only the cores on which this
    # process may run. So these threads are subtracted only if busy_s contains all of their time.
    nobodys = kernel if after.includes_kernel else ()
    others_s = after.busy_s - before.busy_s - sum(spent[pid] for pid in [*own, *nobodys])
    programs_s: defaultdict[str, float] = defaultdict(float)
    # The INIT process adopts the orphans of all programs, so the time of its children belongs to no
    # single program.
    for pid in spent.keys() - own - kernel - {INIT}:
        programs_s[after.processes[pid].name] += spent[pid]
    return others_s, programs_s


def _busiest_first(used: Mapping[str, float]) -> list[str]:
    """The MOST_NAMES programs that used most, in descending order. used: program -> its use."""
    return sorted(used, key=lambda name: -used[name])[:MOST_NAMES]
