"""The seconds of an epoch by a discrete-event model of a loader and its loop.

The model has no randomness and keeps no state. If there are n workers, each worker makes every n-th
batch, at most `prefetch` batches ahead of the loop, and the loop takes the batches in order. A
phase is a piece of work. If the running phases need more cores than there are, all phases that
compute slow down by the same factor. The interpreter's lock slows down the threads that share it in
the same way. A phase in several threads slows down more, because its threads wait for each other
(see CROWDED_POWER).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LOCK_CAPACITY = 1.0
"""Number of threads that can hold the interpreter's lock at a time."""
CROWDED_POWER, WORST_CROWDED_POWER = 1.5, 20.0
"""Usual and worst power by which work in several threads slows down. If there are f times as many
threads as cores, work in one thread takes f times as long. Work in two or more of OpenMP's threads
takes up to f ** (1 + power) times as long: these threads wait for each other after each operation,
so a thread that has lost its core delays the others. Steps of four models in two threads on two
cores had 0.07 to 0.48 of their speed beside a busy process (experiments/attach). With the worst
power, such steps stand still while other processes compute."""
MOST_HELD_UP = 1000.0
"""Greatest factor by which other work delays work in several threads: a speed must not be zero."""
MOST_SIMULATED = 400
"""Maximum number of batches that are simulated; a longer epoch is assumed to continue at the same
pace."""
MOST_MISSED, MOST_MISSED_OF_SCRIPT = 1.5, 1.25
"""Greatest factors by which the model may miss the measured time of an unchanged job, and of an
unchanged loop of a script. If it misses by more, nothing is predicted. The factor of scripts is
smaller because their predictions have no interval, while the intervals of a job's gains grow with
the miss."""
LEAST_MISS, LEAST_MISS_OF_OTHERS, LEAST_MISS_OF_SCRIPT = 0.03, 0.06, 0.20
"""Relative errors that the model is assumed to have after a change, even if it gives the time
before the change exactly. The first two are standard deviations: for a job with the same loader,
and with another loader. The third is the error that is printed for a script's loop."""
DONE_S = 1e-12
"""Seconds. A phase with no more than this left is finished: differences of floats rarely reach
zero."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A piece of work, and the resources that it uses at full speed."""

    seconds: float
    """Duration if nothing else wants the same resources."""
    cores: float = 1.0
    """Number of cores that the phase keeps busy; 0 for a wait, above 1 for several threads."""
    lock: float = 0.0
    """Share of the phase's time in which it holds the interpreter's lock, which all phases
    share."""


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """The settings of a loader, and the cores that it shares with the loop."""

    workers: int
    """0: the loop loads its batches itself."""
    prefetch: int = 2
    """Batches that each worker may be ahead of the loop."""
    cores: float = float("inf")
    """Number of cores for the workers, the loop and other programs together."""
    other_cores: float = 0.0
    """Number of cores that other programs keep busy."""
    start_s: float = 0.0
    """Time from the start of the epoch until a worker begins its first batch."""
    crowded_power: float = CROWDED_POWER
    """The power by which work in several threads slows down if cores are short, see
    CROWDED_POWER."""


def is_close(ratio: float, most_missed: float = MOST_MISSED) -> bool:
    """True if the model is close enough to the measured time to predict the effect of a change.

    ratio: the model's time divided by the measured one.
    """
    return 1 / most_missed <= ratio <= most_missed


@dataclass
class _Actor:
    """The loop or a worker, with its batch and the work that this batch still needs."""

    batch: int = -1
    """Number of the batch; -1: there is none."""
    left: list[Phase] = field(default_factory=list)
    """The phases of the batch that have not ended; the first one runs."""
    remaining_s: float = 0.0
    """Seconds that the first of these phases still needs at full speed."""

    def begin(self, batch: int, phases: Sequence[Phase]) -> None:
        self.batch = batch
        self.left = [phase for phase in phases if phase.seconds > DONE_S]
        self.remaining_s = self.left[0].seconds if self.left else 0.0

    def advance(self, seconds: float) -> None:
        """Do the work that takes this number of seconds at full speed."""
        self.remaining_s -= seconds
        if self.left and self.remaining_s <= DONE_S:
            self.left.pop(0)
            self.remaining_s = self.left[0].seconds if self.left else 0.0


def epoch_seconds(
    loads: Sequence[Sequence[Phase]], steps: Sequence[Sequence[Phase]], machinery: Machinery
) -> float:
    """Seconds of an epoch with these phases of loading and these phases of steps.

    loads[k]: the phases of making batch k, in a worker, or in the loop if there are no workers.
    steps[k]: the phases of the step on batch k, in the loop.
    """
    if not machinery.workers:
        # Nothing overlaps, so the sum of all phases is the answer, without a simulation.
        phases = [[*load, *step] for load, step in zip(loads, steps, strict=True)]
        return machinery.start_s + sum(
            phase.seconds * _slow_down([phase], machinery) for batch in phases for phase in batch
        )
    return _Simulation(loads, steps, machinery).run()


def _slow_down(phases: Sequence[Phase], machinery: Machinery) -> float:
    """The factor by which phases that run at the same time are slower than at full speed."""
    # The operating system gives each program an equal share of the cores, so all phases that need a
    # core slow down alike.
    cores = sum(phase.cores for phase in phases) + machinery.other_cores
    return max(1.0, cores / machinery.cores)


class _Simulation:
    """The simulation of an epoch with workers, from the end of one phase to the next."""

    def __init__(
        self,
        loads: Sequence[Sequence[Phase]],
        steps: Sequence[Sequence[Phase]],
        machinery: Machinery,
    ) -> None:
        self.loads = loads
        self.steps = steps
        self.machinery = machinery
        self.loop = _Actor()
        self.workers = [_Actor() for _ in range(machinery.workers)]
        # Worker w makes the batches w, w + workers, and so on.
        self.next_of = list(range(machinery.workers))
        self.done: set[int] = set()
        self.received = 0

    def run(self) -> float:
        """Seconds until the loop has stepped on the last batch."""
        now_s = self.machinery.start_s
        while True:
            self._hand_out()
            busy = [actor for actor in (self.loop, *self.workers) if actor.left]
            # Nothing can go on: the last step has ended.
            if not busy:
                return now_s
            # Speeds are constant until the first of the present phases ends.
            speeds = [1 / slow for slow in self._slow_downs([actor.left[0] for actor in busy])]
            pause_s = min(
                actor.remaining_s / speed for actor, speed in zip(busy, speeds, strict=True)
            )
            now_s += pause_s
            for actor, speed in zip(busy, speeds, strict=True):
                actor.advance(pause_s * speed)

    def _hand_out(self) -> None:
        """Finish batches without work left, and begin all batches that can begin."""
        # One change can permit another, so this repeats until nothing changes. For example, if the
        # loop takes a batch, a worker may begin one; a batch without work is then ready at once.
        changed = True
        while changed:
            changed = False
            for number, worker in enumerate(self.workers):
                changed = self._advance_worker(number, worker) or changed
            changed = self._advance_loop() or changed

    def _advance_worker(self, number: int, worker: _Actor) -> bool:
        """Finish the worker's batch or begin its next one; False if neither is possible."""
        if worker.left:
            return False
        if worker.batch >= 0:
            self.done.add(worker.batch)
            worker.batch = -1
            return True
        batch = self.next_of[number]
        # DataLoader hands out this number of batches at first, and one more for each batch that it
        # returns.
        ahead = self.machinery.workers * self.machinery.prefetch
        if batch >= len(self.loads) or batch >= self.received + ahead:
            return False
        self.next_of[number] = batch + self.machinery.workers
        worker.begin(batch, self.loads[batch])
        return True

    def _advance_loop(self) -> bool:
        """Give the loop the next batch; False if the loop is busy or the batch is not ready."""
        # Batches are taken in their order: a later one that is ready has to wait.
        if self.loop.left or self.received not in self.done:
            return False
        self.done.remove(self.received)
        self.loop.begin(self.received, self.steps[self.received])
        self.received += 1
        return True

    def _slow_downs(self, phases: Sequence[Phase]) -> list[float]:
        """The factor by which each of these phases, which run at the same time, is slower."""
        machinery = self.machinery
        by_cores = _slow_down(phases, machinery)
        by_lock = max(1.0, sum(phase.lock for phase in phases) / LOCK_CAPACITY)
        own_cores = sum(phase.cores for phase in phases)
        # Nothing slows down a wait, and the lock slows down only phases that need it.
        return [
            max(
                _slow_down_threads(phase, by_cores, own_cores, machinery) if phase.cores else 1.0,
                by_lock if phase.lock else 1.0,
            )
            for phase in phases
        ]


def _slow_down_threads(
    phase: Phase, by_cores: float, own_cores: float, machinery: Machinery
) -> float:
    """The factor by which a phase that computes, in one thread or in several, is slower.

    by_cores: the factor of work in one thread. own_cores: number of cores that all running phases
    of the loader and the loop keep busy at full speed.
    """
    # Work in one thread has no further factor. Nor has a phase that runs alone: its time was
    # measured with all of its threads.
    if phase.cores <= 1 or own_cores <= phase.cores:
        return by_cores
    # A phase that keeps 1.5 cores busy works in two threads for half of its time, and in one thread
    # for the other half.
    share = min(1.0, phase.cores - 1)
    threads = min(max(2.0, phase.cores), machinery.cores)
    others = own_cores - phase.cores
    crowded = max(by_cores, (others + threads) / machinery.cores)
    # Other phases hold up these threads only while they compute: workers that mostly wait hold up
    # little.
    most = 1 / max(1 - others, 1 / MOST_HELD_UP)
    held_up = max(by_cores, min(most, crowded ** (1 + machinery.crowded_power)))
    return (1 - share) * by_cores + share * held_up
