"""Model a script's loop by the phases of its batches, and predict its time with other settings.

A phase is a piece of work, such as making a batch or a step. It has a duration and a number of
cores that it keeps busy. explain/model.py simulates how the phases of workers and loop overlap.

A pass is one iteration over the DataLoader. The seconds of a loop are the sum of three terms:

- the steady time: the waits for batches, and the steps. It is simulated for each setting, and
  scaled so that the model's time of the present settings equals the measured time.
- the starts: the starts and ends of passes, in which workers start and make their first batches.
- once_s: the first batch of each process, if it is not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import TORCH_PREFETCH
from fastloop.explain.attach.attribution import HAND_OFF, START_UP
from fastloop.explain.attach.loops import Loop
from fastloop.explain.attach.worker_starts import seconds_of_workers
from fastloop.explain.change import FORK
from fastloop.explain.model import (
    CROWDED_POWER,
    Machinery,
    Phase,
    epoch_seconds,
)

LEAST_TIMED_S = 0.02
"""Minimum seconds of timed work from which the number of busy cores is computed. So little is
enough because the CPU clocks of threads and processes are exact to microseconds, unlike the
counters of the system."""
MOST_OF_LOOP, BLOCKS = 2000, 20
"""Maximum number of a loop's batches that are simulated, and number of pieces in which these are
taken from a longer loop, from its beginning to its end. A job's epoch is simulated with fewer
batches. A script needs more: it is seen only once, and some of its steps may take a hundred times
as long as others. A simulation takes 30 ms."""
LEAST_HAND_OFF_S = 2e-4
"""Approximate minimum seconds in which a loop receives a batch from a worker."""


@dataclass(frozen=True, kw_only=True)
class LoopModel:
    """A measured loop, and the phases of its batches, from which its time is predicted."""

    loop: Loop
    loads: list[list[Phase]]
    """For each simulated batch, the phases of making it."""
    steps: list[list[Phase]]
    """For each simulated batch, the phases of the step on it."""
    workers: int
    """Present number of workers; 0: the loop makes its batches itself."""
    prefetch: int
    """Number of batches that each worker makes ahead of the loop at present."""
    cores: float
    """Number of cores for one process of the loop, if all processes share the cores evenly."""
    other_cores: float
    """Number of these cores that other programs keep busy."""
    hand_off_s: float | None
    """Seconds in which the loop receives a batch that is ready; None: the loop has no workers."""
    once_s: float = 0.0
    """Seconds of each process's first batch, in sum; 0 if these batches are simulated, too."""

    def seconds(
        self,
        workers: int,
        prefetch: int,
        kept: float = 1.0,
        crowded_power: float = CROWDED_POWER,
    ) -> float:
        """Simulated seconds of the batches with other settings, not scaled.

        prefetch: number of batches that each worker makes ahead. kept: share of the time of making
        a batch that remains after the change. crowded_power: see Machinery.
        """
        loads = [[replace(each, seconds=each.seconds * kept) for each in row] for row in self.loads]
        hand_off_s = LEAST_HAND_OFF_S if self.hand_off_s is None else self.hand_off_s
        received = [Phase(seconds=hand_off_s)] if workers else []
        steps = [[*received, *row] for row in self.steps]
        machinery = Machinery(
            workers=workers,
            prefetch=prefetch,
            cores=self.cores,
            other_cores=self.other_cores,
            crowded_power=crowded_power,
        )
        return epoch_seconds(loads, steps, machinery)

    @cached_property
    def _present_s(self) -> float:
        """Simulated seconds of the batches with the present settings."""
        return self.seconds(self.workers, self.prefetch)

    @cached_property
    def _steady_s(self) -> float:
        """Measured steady time."""
        waits_ns = self.loop.waits_ns[:, :START_UP]
        return (waits_ns.sum() + self.loop.steps_ns.sum()) / 1e9 - self.once_s

    @property
    def ratio(self) -> float:
        """Steady time of the model with the present settings, divided by the measured time."""
        return self._present_s * (self.loop.batches / len(self.steps)) / self._steady_s

    @cached_property
    def starts_s(self) -> float:
        """Measured seconds of the starts."""
        return float(self.loop.waits_ns[:, START_UP].sum() + self.loop.starts_ns.sum()) / 1e9

    def gain(
        self,
        workers: int,
        prefetch: int,
        starts_s: float,
        kept: float = 1.0,
        crowded_power: float = CROWDED_POWER,
    ) -> float:
        """Share of the loop's time that a change saves; negative if the change costs time.

        starts_s: seconds of the starts after the change. The other arguments are those of
        `seconds`.
        """
        return self.gain_of(self.seconds(workers, prefetch, kept, crowded_power), starts_s)

    def gain_of(self, simulated_s: float, starts_s: float) -> float:
        """Share of the loop's time that is saved if the starts take `starts_s` seconds, and the
        simulation of the batches gives `simulated_s` seconds."""
        scale = self._steady_s / self._present_s
        return 1 - (self.once_s + scale * simulated_s + starts_s) / self.loop.seconds

    def starts_with(self, workers: int, times: float) -> float:
        """Seconds of the starts with this number of workers.

        times: number of times that the workers start; used only if the loop has no workers yet.
        """
        if not workers:
            return 0.0 if self.workers else self.starts_s
        # The time of the first batches stays, and the rest grows with the number of workers.
        if self.workers:
            of_workers_s = max(0.0, self.starts_s - self._first_s)
            return min(self.starts_s, self._first_s) + of_workers_s * workers / self.workers
        start_s = seconds_of_workers(workers, self.loop.facts["start_method"])
        return self.starts_s + self._first_s + times * start_s

    def starts_of_forks(self, times: float) -> float:
        """Seconds of the starts if the present workers were forked.

        times: number of times that the workers start.
        """
        start_s = seconds_of_workers(self.workers, FORK)
        return min(self.starts_s, self._first_s) + times * start_s

    @cached_property
    def _first_s(self) -> float:
        """Seconds to make the first batches of all passes, each at the mean time of a batch.

        With any number of workers, this time is a part of the starts, because the loop has nothing
        to do meanwhile.
        """
        made = self.loop.made
        made_s = sum(each.stop_ns - each.start_ns for each in made) / 1e9
        return made_s * len(self.loop.passes) / max(1, len(made))


def model_loop(loop: Loop) -> LoopModel | None:
    """The model of a loop; None if it was not recorded how any batch was made."""
    if not loop.made:
        return None
    first = _find_first_batches(loop) if loop.batches > MOST_OF_LOOP else []
    places = _spread(np.delete(np.arange(loop.batches), first))
    once_ns = loop.waits_ns[first, :START_UP].sum() + loop.steps_ns[first].sum()
    load_s = [(each.stop_ns - each.start_ns) / 1e9 for each in loop.made]
    step_s = loop.steps_ns / 1e9
    load_cores, step_cores = cores_of_loading(loop), cores_of_steps(loop)
    processes = len({each.process_id for each in loop.passes})
    cores = usable_cores() / processes
    # The cores of other programs are a mean over the whole run. While a step, or the making of a
    # batch, was timed, other programs had at most the cores that this work left.
    left = max(0.0, cores - max(load_cores, step_cores))
    return LoopModel(
        loop=loop,
        loads=[[Phase(seconds=load_s[place % len(load_s)], cores=load_cores)] for place in places],
        steps=[[Phase(seconds=float(step_s[place]), cores=step_cores)] for place in places],
        workers=loop.facts["num_workers"],
        prefetch=loop.facts.get("prefetch_factor") or TORCH_PREFETCH,
        cores=cores,
        other_cores=min(loop.other_cores / processes, left),
        hand_off_s=_hand_off_s(loop) if loop.facts["num_workers"] else None,
        once_s=float(once_ns) / 1e9,
    )


def _find_first_batches(loop: Loop) -> list[int]:
    """Index of the first batch in each process of the loop.

    The step on such a batch also loads libraries, and may take as long as a hundred other steps.
    """
    processes = np.array([each.process_id for each in loop.passes])[loop.pass_of]
    return np.unique(processes, return_index=True)[1].tolist()


def _spread(places: np.ndarray) -> np.ndarray:
    """The indices of the batches to simulate, at most MOST_OF_LOOP.

    places: indices of the batches to choose from, ascending. From more than MOST_OF_LOOP batches,
    BLOCKS evenly spaced pieces are taken, from the first batch to the last.
    """
    if len(places) <= MOST_OF_LOOP:
        return places
    size = MOST_OF_LOOP // BLOCKS
    starts = np.linspace(0, len(places) - size, BLOCKS).astype(int)
    return places[(starts[:, None] + np.arange(size)).ravel()]


def cores_of_loading(loop: Loop) -> float:
    """Number of cores that are busy with a batch while it is made; 1 if too little was timed."""
    timed = [each for each in loop.made if each.has_samples]
    wall_ns = sum(each.stop_ns - each.start_ns for each in timed)
    return _cores(sum(each.cpu_ns for each in timed), wall_ns)


def cores_of_steps(loop: Loop) -> float:
    """Number of cores that a step keeps busy; 1 if too little was timed."""
    cpu_ns = np.concatenate([np.array(each.step_cpu_ns, np.int64) for each in loop.passes])
    # A step without a measured CPU time has the value UNKNOWN, which is negative.
    known = cpu_ns >= 0
    # The very first step also loads libraries and starts threads, on one core.
    later = known & (np.arange(len(known)) > 0)
    known = later if later.any() else known
    return _cores(float(cpu_ns[known].sum()), float(loop.steps_ns[known].sum()))


def _cores(cpu_ns: float, wall_ns: float) -> float:
    """CPU time / wall time, at most the usable cores; 1 if the wall time is below LEAST_TIMED_S."""
    return min(usable_cores(), cpu_ns / wall_ns) if wall_ns >= 1e9 * LEAST_TIMED_S else 1.0


def _hand_off_s(loop: Loop) -> float:
    """Seconds in which the loop receives a batch that is ready."""
    # Most hand-offs also contain a wait for the batch's turn, or for a slow worker. The low
    # quantile is a hand-off without such a wait.
    return float(np.quantile(loop.waits_ns[:, HAND_OFF], 0.1)) / 1e9
