"""Gains of other settings of a script's DataLoader, predicted by the model of a loader."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DEEP_PREFETCH, TORCH_PREFETCH
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.attribution import HAND_OFF
from fastloop.explain.attach.loops import Loop
from fastloop.explain.model import MOST_SIMULATED, Machinery, Phase, epoch_seconds

WORKERS = (0, 1, 2, 4, 8)
MOST_MISSED = 1.25
"""Factor by which the model may miss the loop as it is; beyond it nothing is predicted. It is less
than of_job's, because these predictions have no interval that would show the miss."""


@dataclass(frozen=True, kw_only=True)
class LoaderChange:
    """A change of a DataLoader, and its gain by the model."""

    change: str
    gain: float
    """Share of the loop's time that it saves; negative if it costs time."""
    is_bound: bool
    """True if the change has a cost that this run does not show: it gains at most `gain`."""


@dataclass(frozen=True, kw_only=True)
class LoopModel:
    """The phases of a loop's batches."""

    loads: list[list[Phase]]
    steps: list[list[Phase]]
    workers: int
    prefetch: int
    cores: float
    """Number of cores for this process, if ranks share the machine's cores evenly."""
    hand_off_s: float | None
    """Time in which the loop receives a ready batch; None: this loop has no workers."""

    def seconds(self, workers: int, prefetch: int, kept: float = 1.0) -> float:
        """Seconds of these batches with other settings. kept: share of loading that is left."""
        loads = [[replace(each, seconds=each.seconds * kept) for each in row] for row in self.loads]
        received = [Phase(seconds=self.hand_off_s or 0.0)] if workers else []
        steps = [[*received, *row] for row in self.steps]
        machinery = Machinery(workers=workers, prefetch=prefetch, cores=self.cores)
        return epoch_seconds(loads, steps, machinery)


def predict_changes(
    loop: Loop, shares: dict[Part, Estimate]
) -> tuple[float | None, tuple[LoaderChange, ...]]:
    """The model's time of the loop as it is, divided by the measured one; and the changes by their
    gain.

    The ratio is None, and there are no changes, if no batch was recorded as it was made.
    """
    model = model_loop(loop)
    if model is None:
        return None, ()
    # The last column of the waits is start-up, of which the model knows nothing.
    steady_s = (loop.waits_ns.sum() + loop.steps_ns.sum() - loop.waits_ns[:, -1].sum()) / 1e9
    present_s = model.seconds(model.workers, model.prefetch)
    scale = loop.batches / len(model.steps)
    ratio = present_s * scale / steady_s
    if not 1 / MOST_MISSED <= ratio <= MOST_MISSED:
        return ratio, ()
    # The following changes save nothing of a start: their gain is of the rest of the time only.
    steady = steady_s / loop.seconds
    changes = [
        LoaderChange(
            change=each.change, gain=steady * (1 - each.gain / present_s), is_bound=each.is_bound
        )
        for each in _seconds_of_changes(loop, model, shares)
    ]
    changes += _persistent_workers(loop, shares)
    return ratio, tuple(sorted(changes, key=lambda each: -each.gain))


def model_loop(loop: Loop) -> LoopModel | None:
    """The model of a loop; None if no batch was recorded as it was made."""
    if not loop.made:
        return None
    count = min(MOST_SIMULATED, loop.batches)
    places = np.arange(count)
    load_s = [(each.stop_ns - each.start_ns) / 1e9 for each in loop.made]
    step_s = loop.steps_ns / 1e9
    load_cores, step_cores = cores_of_loading(loop), _step_cores(loop)
    prefetch = loop.facts.get("prefetch_factor") or TORCH_PREFETCH
    return LoopModel(
        loads=[[_load_phase(load_s[place % len(load_s)], load_cores)] for place in places],
        steps=[[Phase(seconds=float(step_s[place]), cores=step_cores)] for place in places],
        workers=loop.facts["num_workers"],
        prefetch=prefetch,
        cores=usable_cores() / len({each.process_id for each in loop.passes}),
        hand_off_s=_hand_off_s(loop) if loop.facts["num_workers"] else None,
    )


def _load_phase(seconds: float, cores: float) -> Phase:
    """The phase of making a batch, by a single thread."""
    # A worker has one thread: work that kept several cores busy would take as long there as its
    # CPU time.
    return Phase(seconds=float(seconds) * max(1.0, cores), cores=min(1.0, cores))


def cores_of_loading(loop: Loop) -> float:
    """Number of cores that making a batch keeps busy; one if too little was timed to tell."""
    timed = [each for each in loop.made if each.has_samples]
    wall_ns = sum(each.stop_ns - each.start_ns for each in timed)
    return _cores(sum(each.cpu_ns for each in timed), wall_ns)


def _step_cores(loop: Loop) -> float:
    """Number of cores that a step keeps busy; one if too little was timed to tell."""
    cpu_ns = np.concatenate([np.array(each.step_cpu_ns, np.int64) for each in loop.passes])
    # UNKNOWN is negative.
    known = cpu_ns >= 0
    return _cores(float(cpu_ns[known].sum()), float(loop.steps_ns[known].sum()))


def _cores(cpu_ns: float, wall_ns: float) -> float:
    return min(usable_cores(), cpu_ns / wall_ns) if wall_ns >= 1e9 * LEAST_SECONDS else 1.0


def _hand_off_s(loop: Loop) -> float:
    """The wait for a batch that is ready."""
    # Most batches also wait for their turn, or for a slow worker; the low quantile is of batches
    # that did not.
    return float(np.quantile(loop.waits_ns[:, HAND_OFF], 0.1)) / 1e9


def _seconds_of_changes(
    loop: Loop, model: LoopModel, shares: dict[Part, Estimate]
) -> list[LoaderChange]:
    """The changes, with the model's seconds instead of gains."""
    found = [
        LoaderChange(
            change=f"num_workers={workers}",
            gain=model.seconds(workers, model.prefetch),
            is_bound=not model.workers,
        )
        for workers in WORKERS
        if workers != model.workers and workers <= 2 * usable_cores()
    ]
    if model.workers and model.prefetch < DEEP_PREFETCH:
        seconds = model.seconds(model.workers, DEEP_PREFETCH)
        change = f"prefetch_factor={DEEP_PREFETCH}"
        found.append(LoaderChange(change=change, gain=seconds, is_bound=False))
    # A store is written from a Dataset with indices. Its reading costs something that this run
    # does not show, so that both gains are bounds.
    if shares[Part.DECODE].value > 0 and not loop.facts["iterable"]:
        seconds = model.seconds(model.workers, model.prefetch, _remaining_share(loop))
        change = "samples from a store (fastloop.write_store)"
        found.append(LoaderChange(change=change, gain=seconds, is_bound=True))
        # Loading takes no time here, so that the length of the queue does not matter.
        seconds = model.seconds(1, DEEP_PREFETCH, 0.0)
        change = "fastloop.FastLoader on a store"
        found.append(LoaderChange(change=change, gain=seconds, is_bound=True))
    return found


def _remaining_share(loop: Loop) -> float:
    """Share of making a batch that a store leaves: collate, and the dataset's transform."""
    decode_ns = sum(each.collate_ns - each.start_ns for each in loop.made)
    all_ns = sum(each.stop_ns - each.start_ns for each in loop.made)
    return 1 - decode_ns * (1 - (loop.transform_share or 0.0)) / all_ns if all_ns else 1.0


def _persistent_workers(loop: Loop, shares: dict[Part, Estimate]) -> list[LoaderChange]:
    facts, passes = loop.facts, len(loop.passes)
    if not facts["num_workers"] or facts["persistent_workers"] or passes < 2:
        return []
    # The workers of the first pass start in any case.
    gain = shares[Part.START_UP].value * (passes - 1) / passes
    return [LoaderChange(change="persistent_workers=True", gain=gain, is_bound=True)]
