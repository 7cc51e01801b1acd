"""Collect how a loop's processes use cores, files and memory, from the facts of usage_probe.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.explain.attach.loop_passes import LoaderPass
from fastloop.explain.attach.recorded_processes import ProcessRecords

Fact = Mapping[str, Any]
"""A fact that usage_probe.py has written."""
_Pass = tuple[int, int]
"""The process of a pass, and the number of the pass there."""


@dataclass(frozen=True, kw_only=True)
class LoopUsage:
    """The usage of a loop: the last fact about each pass, from each process that runs the loop or
    makes its batches."""

    steps: tuple[Fact, ...] = ()
    """Facts of the processes that run the loop."""
    makes: tuple[Fact, ...] = ()
    """Facts of the workers. Without workers: of the loop's own process, which makes the batches."""
    workers: int = 0
    """Number of workers of each of these processes."""
    tensors: int = 0
    """Number of tensors of a batch."""
    errors: tuple[str, ...] = ()
    """Texts of the errors that the loop has received instead of batches."""

    def share_of_makes(self, name: str) -> float:
        """A counter as a share of the time of making batches. name: its name, such as `cpu_ns`."""
        return _share((each["parts"] for each in self.makes), name)

    @property
    def idle_share(self) -> float:
        """Share of the time of making batches in which no thread of the process computed or waited
        for a core: the samples waited."""
        if not self.makes:
            return 0.0
        return max(0.0, 1 - self._computing_share - self.share_of_makes("delay_ns"))

    @property
    def is_mostly_idle(self) -> bool:
        """True if making a batch waits longer than it computes. Waits for a core don't count."""
        idle = self.idle_share
        return idle > 0 and idle >= self._computing_share

    @property
    def _computing_share(self) -> float:
        """CPU time of all threads of the process while it makes batches, as a share of that time;
        above 1 if several threads compute."""
        return max(self.share_of_makes("cpu_ns"), self.share_of_makes("process_ns"))

    def stall_share(self, step_share: float) -> float:
        """Share of the loop's time in which a step goes on, but no thread computes or waits for a
        core. The step with the longest such time does not count.

        step_share: the share of the loop's time that all steps take.
        """
        parts = [each["parts"] for each in self.steps]
        wall_ns = sum(each["wall_ns"] for each in parts)
        if not wall_ns:
            return 0.0
        computes = max(_share(parts, "process_ns"), _share(parts, "cpu_ns"))
        # A single long wait is not typical of the step: the first convolution reads its library
        # from disk, and the first step of a profiler reads its settings.
        computes += max(each["longest_idle_ns"] for each in self.steps) / wall_ns
        # The threads of a step may all wait for one of them that has no core. The waits of all
        # threads for cores are known only for the loop as a whole, and may all have been in steps.
        delayed = max(step_share * _share(parts, "delay_ns"), _share(self.steps, "delay_ns"))
        return max(0.0, step_share * (1 - computes) - delayed)

    def contention(self, other_cores: float) -> float:
        """Share of the steps' time in which the loop's thread could run, but workers had the cores.

        other_cores: number of cores that other programs took; waits are divided between them and
        the workers.
        """
        parts = [each["parts"] for each in self.steps]
        timed_s = sum(each["wall_ns"] for each in parts) / 1e9
        of_workers = self._cores_of_workers()
        if timed_s < LEAST_SECONDS or not of_workers:
            return 0.0
        return min(1.0, _share(parts, "delay_ns")) * of_workers / (of_workers + other_cores)

    def _cores_of_workers(self) -> float:
        """Mean number of cores that the workers of one loop used while it ran."""
        wall_ns = sum(each["wall_ns"] for each in self.steps)
        if not self.workers or not self.makes or not wall_ns:
            return 0.0
        # Workers that are ahead of the loop are idle: their CPU time counts for all of its time,
        # not for the time of making batches alone.
        made_ns = sum(each["cpu_ns"] for each in self.makes) / len(self.makes)
        return self.workers * min(1.0, made_ns * len(self.steps) / wall_ns)

    @property
    def delay_share(self) -> float | None:
        """Share of the time in which a maker's threads wait for cores; None: it is not known."""
        return _share(self.makes, "delay_ns") if self.makes else None

    @property
    def demand(self) -> float:
        """Number of cores on which the threads of all these processes would have run at the same
        time, whether they got them or not."""
        loops = len({each["process_id"] for each in self.steps})
        makers = loops * self.workers
        return loops * _runnable(self.steps) + (makers * _runnable(self.makes) if makers else 0.0)


def collect_usage(passes: Sequence[LoaderPass], records: Sequence[ProcessRecords]) -> LoopUsage:
    """The usage of the loop with these passes, from the records of all processes."""
    # The last fact of each role about a pass of a process: later facts contain the earlier ones.
    last: dict[str, dict[_Pass, Fact]] = defaultdict(dict)
    for process in records:
        for fact in process.facts:
            for kind in ("usage_of", "samples_of", "failed_in"):
                if kind in fact:
                    key = process.process_id, fact[kind]
                    last[fact.get("role", kind)][key] = {**fact, "process_id": process.process_id}
    of_loops = [(each.process_id, each.number) for each in passes]
    of_makers = [
        (process_id, each.number_by_makers) for each in passes for process_id in each.maker_pids
    ]
    return LoopUsage(
        steps=_of(last["steps"], of_loops),
        makes=_of(last["makes"], of_makers),
        workers=max((len(each.pids) for each in passes), default=0),
        tensors=max((each["tensors"] for each in _of(last["samples_of"], of_makers)), default=0),
        errors=tuple(each["error"] for each in _of(last["failed_in"], of_loops)),
    )


def _of(facts: Mapping[_Pass, Fact], passes: Sequence[_Pass]) -> tuple[Fact, ...]:
    return tuple(facts[each] for each in passes if each in facts)


def _share(facts: Iterable[Fact], name: str) -> float:
    """The counter as a share of the wall time; 0 if nothing was timed."""
    facts = list(facts)
    wall_ns = sum(each["wall_ns"] for each in facts)
    return sum(each[name] for each in facts) / wall_ns if wall_ns else 0.0


def _runnable(facts: Sequence[Fact]) -> float:
    """Mean number of threads of one process that could run."""
    return _share(facts, "cpu_ns") + _share(facts, "delay_ns")
