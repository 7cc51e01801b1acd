"""Gains of other settings of a script's DataLoader, predicted by the model of a loader."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DEEP_PREFETCH, TORCH_PREFETCH
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.attribution import HAND_OFF
from fastloop.explain.attach.loops import Loop
from fastloop.explain.attach.worker_starts import seconds_of_workers
from fastloop.explain.change import FASTLOADER, LEAST_GAIN, Change
from fastloop.explain.model import (
    CROWDED_POWER,
    MOST_MISSED_OF_SCRIPT,
    MOST_SIMULATED,
    WORST_CROWDED_POWER,
    Machinery,
    Phase,
    epoch_seconds,
    is_close,
)

WORKERS = (0, 1, 2, 4, 8)
"""Numbers of workers for which a gain is predicted."""
STORE = "samples from a store (fastloop.write_store)"
FAST_STORE = "fastloop.FastLoader on a store"
STARTS_UNSURE = 2
"""Workers may take this many times as long to start as the tries took, and may hold up a step in
several threads by more than is usual. Numbers of workers are listed only if they gain even then."""
KEPT_OF_ROWS = 0.1
"""Share of loading that is left if images in memory, such as MNIST's, are read as rows instead of
one by one; a batch itself costs about as much as a sample of the DataLoader. Measured: 0.02 to 0.05
of batches of 128, 0.13 to 0.15 if they are cropped or have 16 samples, 0.65 to 1.03 of single ones.
"""
LEAST_TIMED_S = 0.02
"""A share of a core rests on no less time than this. The clocks of the CPU time of a thread and of
a process are exact to microseconds, unlike the counters of the system."""
LEAST_HAND_OFF_S = 2e-4
"""About the least time in which a loop receives a batch from a worker."""


@dataclass(frozen=True, kw_only=True)
class LoopWhatIf:
    """The gain that the model predicts for a change of a loop's DataLoader."""

    change: Change
    gain: float | None
    """Share of the loop's time that it saves; None: it is not predicted."""
    is_bound: bool = False
    """True if the change has a cost that this run does not show: it gains at most `gain`."""

    @property
    def is_native(self) -> bool:
        """True for FastLoader over the dataset itself, which it decodes natively.

        FastLoader over a store does not count: the store has to be written first, so that the call
        is not all that changes.
        """
        return self.change.is_fastloader


@dataclass(frozen=True, kw_only=True)
class LoopModel:
    """The phases of a loop's batches."""

    loads: list[list[Phase]]
    steps: list[list[Phase]]
    workers: int
    prefetch: int
    cores: float
    """Number of cores for this process, if ranks share the machine's cores evenly."""
    other_cores: float
    """Number of these that other programs keep busy."""
    hand_off_s: float | None
    """Time in which the loop receives a ready batch; None: this loop has no workers."""

    def seconds(
        self,
        workers: int,
        prefetch: int,
        kept: float = 1.0,
        crowded_power: float = CROWDED_POWER,
    ) -> float:
        """Seconds of these batches with other settings. kept: share of loading that is left."""
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


def predict_changes(
    loop: Loop, shares: dict[Part, Estimate]
) -> tuple[float | None, tuple[LoopWhatIf, ...]]:
    """The model's time of the loop as it is, divided by the measured one; and the changes, the
    greatest gain first.

    The ratio is None, and there are no changes, if no batch was recorded as it was made.
    """
    model = None if loop.facts.get("is_watched") else model_loop(loop)
    if model is None:
        return None, ()
    # The last column of the waits is start-up, which the model does not contain.
    steady_s = (loop.waits_ns.sum() + loop.steps_ns.sum() - loop.waits_ns[:, -1].sum()) / 1e9
    present_s = model.seconds(model.workers, model.prefetch)
    scale = loop.batches / len(model.steps)
    ratio = present_s * scale / steady_s
    if not is_close(ratio, MOST_MISSED_OF_SCRIPT):
        return ratio, _native_change(loop, None)
    changes = _find_changes(_LoopTime(loop, model, steady_s / present_s), shares)
    changes += _persistent_workers(loop, shares)
    # FastLoader over the dataset itself is first: it needs no other setting, and no store.
    worth = [each for each in changes if each.gain and each.gain >= LEAST_GAIN]
    worth.sort(key=lambda each: (not each.is_native, -(each.gain or 0.0)))
    return ratio, tuple(worth)


def model_loop(loop: Loop) -> LoopModel | None:
    """The model of a loop; None if no batch was recorded as it was made."""
    if not loop.made:
        return None
    count = min(MOST_SIMULATED, loop.batches)
    places = np.arange(count)
    load_s = [(each.stop_ns - each.start_ns) / 1e9 for each in loop.made]
    step_s = loop.steps_ns / 1e9
    load_cores, step_cores = cores_of_loading(loop), cores_of_steps(loop)
    processes = len({each.process_id for each in loop.passes})
    cores = usable_cores() / processes
    # Other programs use their mean over the whole run; beside a step, or the making of a batch,
    # they had at most the cores that this left, as its time has been measured with them.
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
    )


def cores_of_loading(loop: Loop) -> float:
    """Share of a core that the thread which makes a batch keeps busy; 1 if too little was timed to
    tell."""
    timed = [each for each in loop.made if each.has_samples]
    wall_ns = sum(each.stop_ns - each.start_ns for each in timed)
    return _cores(sum(each.cpu_ns for each in timed), wall_ns)


def cores_of_steps(loop: Loop) -> float:
    """Number of cores that a step keeps busy; one if too little was timed to tell."""
    cpu_ns = np.concatenate([np.array(each.step_cpu_ns, np.int64) for each in loop.passes])
    # UNKNOWN, the mark of a step without a reading of the CPU time, is negative.
    known = cpu_ns >= 0
    # The first step of all also loads libraries and starts threads, on one core.
    later = known & (np.arange(len(known)) > 0)
    known = later if later.any() else known
    return _cores(float(cpu_ns[known].sum()), float(loop.steps_ns[known].sum()))


def _cores(cpu_ns: float, wall_ns: float) -> float:
    return min(usable_cores(), cpu_ns / wall_ns) if wall_ns >= 1e9 * LEAST_TIMED_S else 1.0


def _hand_off_s(loop: Loop) -> float:
    """The wait for a batch that is ready."""
    # Most batches also wait for their turn, or for a slow worker. The low quantile shows the
    # hand-off of the batches that did not.
    return float(np.quantile(loop.waits_ns[:, HAND_OFF], 0.1)) / 1e9


@dataclass(frozen=True)
class _LoopTime:
    """The time of a loop after a change."""

    loop: Loop
    model: LoopModel
    scale: float
    """Seconds of the measured loop, without starts, for each second of the model."""

    def gain(
        self,
        workers: int,
        prefetch: int,
        start_s: float,
        kept: float = 1.0,
        crowded_power: float = CROWDED_POWER,
    ) -> float:
        """Share of the loop's time that is saved. start_s: seconds of all starts together."""
        steady_s = self.scale * self.model.seconds(workers, prefetch, kept, crowded_power)
        return 1 - (steady_s + start_s) / self.loop.seconds

    @property
    def starts_s(self) -> float:
        """Time of all starts and ends of epochs, as they are."""
        present_s = self.model.seconds(self.model.workers, self.model.prefetch)
        return max(0.0, self.loop.seconds - self.scale * present_s)

    def starts_with(self, workers: int, starts: float) -> float:
        """Time of all starts and ends of epochs with this number of workers.

        starts: how often the workers start, if the loop has none now.
        """
        present, passes = self.model.workers, len(self.loop.passes)
        first_s = sum(each.stop_ns - each.start_ns for each in self.loop.made) / 1e9
        first_s *= passes / max(1, len(self.loop.made))
        # first_s is the time to make the first batch of every epoch. With workers it is a part of
        # start-up, however many there are, because the loop has nothing to do meanwhile.
        if not workers:
            return 0.0 if present else self.starts_s
        if present:
            of_workers_s = max(0.0, self.starts_s - first_s)
            return min(self.starts_s, first_s) + of_workers_s * workers / present
        start_s = seconds_of_workers(workers, self.loop.facts["start_method"])
        return self.starts_s + first_s + starts * start_s


def _find_changes(time: _LoopTime, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    loop, model = time.loop, time.model
    found = [
        change
        for workers in WORKERS
        if workers != model.workers and workers <= _most_workers(loop)
        for change in _changes_of_workers(time, workers)
    ]
    if model.workers and model.prefetch < DEEP_PREFETCH:
        gain = time.gain(model.workers, DEEP_PREFETCH, time.starts_s)
        change = Change(settings={"prefetch_factor": DEEP_PREFETCH})
        found.append(LoopWhatIf(change=change, gain=gain))
    if loop.facts.get("is_in_memory"):
        found += _native_change(loop, time.gain(0, TORCH_PREFETCH, 0.0, _find_kept_share(loop)))
    else:
        # FastLoader is assumed to take as long for a sample as the DataLoader takes now, and to
        # decode in as many threads as there are cores.
        found += _native_change(loop, time.gain(max(1, int(model.cores)), DEEP_PREFETCH, 0.0))
    if shares[Part.DECODE].value > 0 and not loop.facts["iterable"] and not loop.no_store:
        found += _changes_of_stores(time)
    return found


def _find_kept_share(loop: Loop) -> float:
    return min(1.0, KEPT_OF_ROWS + 1 / (loop.facts.get("batch_size") or 1))


def _native_change(loop: Loop, gain: float | None) -> tuple[LoopWhatIf, ...]:
    """FastLoader over the dataset itself, if it decodes that natively."""
    if not loop.facts.get("is_native"):
        return ()
    made_at = loop.facts.get("made_at")
    place = f" at {os.path.basename(made_at)}" if made_at else ""
    without = ", ".join(loop.facts.get("without_effect") or ())
    dropped = f" (no effect there: {without})" if without else ""
    text = f"{FASTLOADER} in place of DataLoader{place}{dropped}"
    return (LoopWhatIf(change=Change(is_fastloader=True, text=text), gain=gain),)


def _most_workers(loop: Loop) -> int:
    """The greatest number of workers that may help."""
    divided, most = loop.facts["most_workers"], 2 * usable_cores()
    return most if divided is None else min(most, divided)


def _changes_of_workers(time: _LoopTime, workers: int) -> list[LoopWhatIf]:
    passes, loaders = len(time.loop.passes), time.loop.loaders
    ways: list[tuple[dict[str, bool], int]] = [({}, passes)]
    # If a DataLoader is iterated over several times, its workers may stay from pass to pass.
    if workers and not time.model.workers and loaders < passes:
        ways.append(({"persistent_workers": True}, loaders))
    found, best = [], 0.0
    for kept, starts in ways:
        ahead, starts_s = time.model.prefetch, time.starts_with(workers, starts)
        most_starts_s = time.starts_with(workers, STARTS_UNSURE * starts)
        gain = time.gain(workers, ahead, starts_s)
        least = time.gain(workers, ahead, most_starts_s, crowded_power=WORST_CROWDED_POWER)
        if least >= LEAST_GAIN and gain >= best + LEAST_GAIN:
            change = Change(settings={"num_workers": workers, **kept})
            found.append(LoopWhatIf(change=change, gain=gain))
            best = gain
    return found


def _changes_of_stores(time: _LoopTime) -> list[LoopWhatIf]:
    """Changes to a store. This run does not show the cost of reading it, so their gains are upper
    bounds."""
    model = time.model

    def gain_of_store(kept: float) -> float:
        return time.gain(model.workers, model.prefetch, time.starts_s, kept)

    def gain_of_fastloader(kept: float) -> float:
        return time.gain(1, DEEP_PREFETCH, 0.0, kept)

    return [
        *_change_to_store(STORE, gain_of_store, _remaining_share(time.loop)),
        # Nothing of loading is left here, so the length of the queue has no effect.
        *_change_to_store(FAST_STORE, gain_of_fastloader, 0.0),
    ]


def _change_to_store(text: str, gain: Callable[[float], float], kept: float) -> list[LoopWhatIf]:
    """The change to a store, if it is worth listing. gain: of the share of loading that is left."""
    # A bound is listed only if the store would be a gain even if it saved half as much.
    if gain((1 + kept) / 2) < LEAST_GAIN:
        return []
    return [LoopWhatIf(change=Change(text=text), gain=gain(kept), is_bound=True)]


def _remaining_share(loop: Loop) -> float:
    """Share of making a batch that a store leaves: collate, and the dataset's transform."""
    decode_ns = sum(each.collate_ns - each.start_ns for each in loop.made)
    all_ns = sum(each.stop_ns - each.start_ns for each in loop.made)
    return 1 - decode_ns * (1 - (loop.transform_share or 0.0)) / all_ns if all_ns else 1.0


def _persistent_workers(loop: Loop, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    facts, passes = loop.facts, len(loop.passes)
    # If each pass has a DataLoader of its own, workers end with it and can't stay.
    if not facts["num_workers"] or facts["persistent_workers"] or loop.loaders == passes:
        return []
    # The workers of a DataLoader's first pass start in any case.
    gain = shares[Part.START_UP].value * (passes - loop.loaders) / passes
    return [LoopWhatIf(change=Change(settings={"persistent_workers": True}), gain=gain)]
