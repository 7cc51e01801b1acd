"""Model a script's loop by the phases of its batches, and predict its time with other settings.

A phase is a piece of work, such as making a batch or a step. It has a duration and a number of
cores that it keeps busy. explain/model.py simulates how the phases of workers and loop overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import TORCH_PREFETCH
from fastloop.explain.attach.attribution import HAND_OFF
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
    """The simulated batches of a measured loop, and the loop's present settings."""

    loads: list[list[Phase]]
    """For each batch, the phases of making it."""
    steps: list[list[Phase]]
    """For each batch, the phases of the step on it."""
    workers: int
    """Number of workers of the measured loop; 0: the loop makes its batches itself."""
    prefetch: int
    """Number of batches that each worker makes ahead of the measured loop."""
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
        """Simulated seconds of these batches with other settings.

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


def model_loop(loop: Loop) -> LoopModel | None:
    """The model of a loop; None if it was not recorded how any batch was made."""
    if not loop.made:
        return None
    first = _find_first_batches(loop) if loop.batches > MOST_OF_LOOP else []
    places = _spread(np.delete(np.arange(loop.batches), first))
    # The last column of the waits is start-up, which the model does not contain.
    once_ns = loop.waits_ns[first, :-1].sum() + loop.steps_ns[first].sum()
    load_s = [(each.stop_ns - each.start_ns) / 1e9 for each in loop.made]
    step_s = loop.steps_ns / 1e9
    load_cores, step_cores = cores_of_loading(loop), cores_of_steps(loop)
    processes = len({each.process_id for each in loop.passes})
    cores = usable_cores() / processes
    # The cores of other programs are a mean over the whole run. While a step, or the making of a
    # batch, was timed, other programs had at most the cores that this work left.
    left = max(0.0, cores - max(load_cores, step_cores))
    prefetch = loop.facts.get("prefetch_factor") or TORCH_PREFETCH
    return LoopModel(
        loads=[[Phase(seconds=load_s[place % len(load_s)], cores=load_cores)] for place in places],
        steps=[[Phase(seconds=float(step_s[place]), cores=step_cores)] for place in places],
        workers=loop.facts["num_workers"],
        prefetch=prefetch,
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

    places: indices of all batches, ascending. From more than MOST_OF_LOOP batches, BLOCKS evenly
    spaced pieces are taken, from the first batch to the last.
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


@dataclass(frozen=True, kw_only=True)
class LoopTime:
    """A measured loop with its model, which predicts the loop's time after a change."""

    loop: Loop
    model: LoopModel
    scale: float
    """Measured seconds for each second of the model, without starts, ends and `once_s`."""

    def gain(
        self,
        workers: int,
        prefetch: int,
        start_s: float,
        kept: float = 1.0,
        crowded_power: float = CROWDED_POWER,
    ) -> float:
        """Share of the loop's time that a change saves; negative if the change costs time.

        start_s: seconds of all starts and ends of epochs after the change. The other arguments are
        those of LoopModel.seconds.
        """
        steady_s = self.scale * self.model.seconds(workers, prefetch, kept, crowded_power)
        return 1 - (self.model.once_s + steady_s + start_s) / self.loop.seconds

    @property
    def starts_s(self) -> float:
        """Seconds of all starts and ends of epochs in the measured loop.

        The model and `once_s` account for the rest of the loop's time.
        """
        present_s = self.model.seconds(self.model.workers, self.model.prefetch)
        return max(0.0, self.loop.seconds - self.model.once_s - self.scale * present_s)

    def starts_with(self, workers: int, starts: float) -> float:
        """Seconds of all starts and ends of epochs with this number of workers.

        starts: number of times that the workers start, which is used only if the measured loop has
        no workers.
        """
        present = self.model.workers
        first_s = self._first_s
        if not workers:
            return 0.0 if present else self.starts_s
        # The time of the first batches stays, and the rest grows with the number of workers.
        if present:
            of_workers_s = max(0.0, self.starts_s - first_s)
            return min(self.starts_s, first_s) + of_workers_s * workers / present
        start_s = seconds_of_workers(workers, self.loop.facts["start_method"])
        return self.starts_s + first_s + starts * start_s

    def starts_of_forks(self, starts: float) -> float:
        """Seconds of all starts and ends of epochs if the present workers were forked.

        starts: number of times that the workers start.
        """
        start_s = seconds_of_workers(self.model.workers, FORK)
        return min(self.starts_s, self._first_s) + starts * start_s

    @property
    def _first_s(self) -> float:
        """Seconds to make the first batches of all epochs, each at the mean time of a batch.

        With any number of workers, this time is a part of start-up, because the loop has nothing to
        do meanwhile.
        """
        made_s = sum(each.stop_ns - each.start_ns for each in self.loop.made) / 1e9
        return made_s * len(self.loop.passes) / max(1, len(self.loop.made))
