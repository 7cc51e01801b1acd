"""Predict the gains of other settings of a script's DataLoader by the model of its loop.

A gain is the share of the loop's time that a change saves. A pass is one iteration over the
DataLoader.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DEEP_PREFETCH
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.fastloader_gain import FastLoaderGain, find_fastloader_gain
from fastloop.explain.attach.loop_model import LoopTime, model_loop
from fastloop.explain.attach.loops import Loop
from fastloop.explain.change import FASTLOADER, FORK, LEAST_GAIN, Change
from fastloop.explain.model import MOST_MISSED_OF_SCRIPT, WORST_CROWDED_POWER, is_close

WORKER_COUNTS = (0, 1, 2, 4, 8)
"""Numbers of workers for which a gain is predicted."""
STORE = "samples from a store (fastloop.write_store)"
FAST_STORE = "fastloop.FastLoader on a store"
"""Names of the changes to a store, a copy of the samples that has to be written first."""
STARTS_UNSURE = 2
"""Factor by which workers may take longer to start than in the tries of worker_starts.py. A number
of workers is listed only if it saves time even with such starts, and even if the workers slow down
a step in several threads as much as WORST_CROWDED_POWER says."""


@dataclass(frozen=True, kw_only=True)
class LoopWhatIf:
    """The gain that the model predicts for a change of a loop's DataLoader."""

    change: Change
    gain: float | None
    """Share of the loop's time that the change saves; None: the gain is not predicted."""
    is_bound: bool = False
    """True if `gain` is an upper bound: the change has a cost that this run does not show."""
    basis: str = ""
    """The evidence for the gain, or the reason why none is predicted; empty if the note below the
    changes says enough."""

    @property
    def is_least(self) -> bool:
        """True if the gain is a lower bound: the run shows only the part that `basis` names."""
        return self.gain is not None and bool(self.basis)

    @property
    def is_fastloader(self) -> bool:
        """True for FastLoader over the dataset itself.

        False for FastLoader over a store: there the script needs more changes than the call,
        because the store has to be written first.
        """
        return self.change.is_fastloader


def predict_changes(
    loop: Loop, shares: dict[Part, Estimate]
) -> tuple[float | None, tuple[LoopWhatIf, ...]]:
    """The ratio of the model's time to the measured time of the loop as it is, and the changes.

    FastLoader is the first change if it reads the dataset natively. The other changes follow, the
    greatest gain first. If the model misses the measured time by too much, no gain is predicted,
    and there is at most the change to FastLoader. The ratio is None, and there are no changes, if
    no batch was recorded as it was made. shares: each part's share of the loop's time.
    """
    model = None if loop.facts.get("is_watched") else model_loop(loop)
    if model is None:
        return None, ()
    # The last column of the waits is start-up, which is no part of the model.
    steady_s = (loop.waits_ns[:, :-1].sum() + loop.steps_ns.sum()) / 1e9 - model.once_s
    present_s = model.seconds(model.workers, model.prefetch)
    scale = loop.batches / len(model.steps)
    ratio = present_s * scale / steady_s
    if not is_close(ratio, MOST_MISSED_OF_SCRIPT):
        unknown = FastLoaderGain(gain=None)
        return ratio, _change_to_fastloader(loop, unknown) if loop.facts.get("is_native") else ()
    changes = _find_changes(LoopTime(loop=loop, model=model, scale=steady_s / present_s), shares)
    changes += _persistent_workers(loop, shares)
    worth = [each for each in changes if each.gain is None or each.gain >= LEAST_GAIN]

    # A FastLoader that reads the dataset natively needs no other setting and no store, so it is
    # first.
    def rank(each: LoopWhatIf) -> tuple[bool, float]:
        is_first = each.is_fastloader and bool(loop.facts.get("is_native"))
        return not is_first, -(each.gain or 0.0)

    return ratio, tuple(sorted(worth, key=rank))


def _find_changes(time: LoopTime, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    """The changes with their gains, except persistent_workers for the present workers."""
    loop = time.loop
    model = time.model
    found = [
        change
        for workers in WORKER_COUNTS
        if workers != model.workers and workers <= _most_workers(loop)
        for change in _changes_of_workers(time, workers)
    ]
    if model.workers and model.prefetch < DEEP_PREFETCH:
        gain = time.gain(model.workers, DEEP_PREFETCH, time.starts_s)
        change = Change(settings={"prefetch_factor": DEEP_PREFETCH})
        found.append(LoopWhatIf(change=change, gain=gain))
    found += _change_to_forks(time)
    if gain := find_fastloader_gain(time):
        found += _change_to_fastloader(loop, gain)
    if shares[Part.DECODE].value > 0 and not loop.facts["iterable"] and not loop.no_store:
        found += _changes_of_stores(time)
    return found


def _change_to_fastloader(loop: Loop, found: FastLoaderGain) -> tuple[LoopWhatIf, ...]:
    """The change to FastLoader over the dataset itself, as a tuple of one."""
    made_at = loop.facts.get("made_at")
    place = f" at {os.path.basename(made_at)}" if made_at else ""
    without = ", ".join(loop.facts.get("without_effect") or ())
    dropped = f" (no effect there: {without})" if without else ""
    text = f"{FASTLOADER} in place of DataLoader{place}{dropped}"
    change = Change(is_fastloader=True, text=text)
    return (LoopWhatIf(change=change, gain=found.gain, basis=found.basis),)


def _most_workers(loop: Loop) -> int:
    """The greatest number of workers for which a gain is predicted: two per usable core, or fewer
    if the samples can be divided only among fewer workers."""
    divided = loop.facts["most_workers"]
    most = 2 * usable_cores()
    return most if divided is None else min(most, divided)


def _changes_of_workers(time: LoopTime, workers: int) -> list[LoopWhatIf]:
    """The changes to this number of workers, alone and with persistent_workers, that save at least
    LEAST_GAIN."""
    passes = len(time.loop.passes)
    loaders = time.loop.loaders
    ways: list[tuple[dict[str, bool], int]] = [({}, passes)]
    # If a DataLoader is iterated over several times, its workers may stay from pass to pass.
    if workers and not time.model.workers and loaders < passes:
        ways.append(({"persistent_workers": True}, loaders))
    found = []
    best = 0.0
    for kept, starts in ways:
        ahead = time.model.prefetch
        starts_s = time.starts_with(workers, starts)
        most_starts_s = time.starts_with(workers, STARTS_UNSURE * starts)
        gain = time.gain(workers, ahead, starts_s)
        least = time.gain(workers, ahead, most_starts_s, crowded_power=WORST_CROWDED_POWER)
        if least >= LEAST_GAIN and gain >= best + LEAST_GAIN:
            change = Change(settings={"num_workers": workers, **kept})
            found.append(LoopWhatIf(change=change, gain=gain))
            best = gain
    return found


def _change_to_forks(time: LoopTime) -> list[LoopWhatIf]:
    """The change to forked workers; empty if workers are not spawned, or if forks are not safe.

    A spawned worker is a new interpreter, which imports the script and its libraries.
    """
    facts = time.loop.facts
    # A fork can't use CUDA if the script does, and on macOS the system's libraries may break in a
    # fork. The documentation of some libraries says that a fork after their import may hang.
    is_unsafe = facts.get("uses_cuda") or facts.get("has_unsafe_forks")
    is_safe = sys.platform == "linux" and not is_unsafe
    if not time.model.workers or facts.get("start_method") != "spawn" or not is_safe:
        return []
    starts = time.loop.loaders if facts.get("persistent_workers") else len(time.loop.passes)
    gain, least = (
        time.gain(time.model.workers, time.model.prefetch, time.starts_of_forks(count))
        for count in (starts, STARTS_UNSURE * starts)
    )
    change = Change(settings={"multiprocessing_context": FORK})
    return [LoopWhatIf(change=change, gain=gain)] if least >= LEAST_GAIN else []


def _changes_of_stores(time: LoopTime) -> list[LoopWhatIf]:
    """The changes to a store. Their gains are upper bounds, because this run does not show the cost
    of reading a store."""
    model = time.model

    def gain_of_store(kept: float) -> float:
        return time.gain(model.workers, model.prefetch, time.starts_s, kept)

    def gain_of_fastloader(kept: float) -> float:
        return time.gain(1, DEEP_PREFETCH, 0.0, kept)

    return [
        *_change_to_store(STORE, gain_of_store, _remaining_share(time.loop)),
        # The bound for FastLoader leaves nothing of loading, so the length of the queue has no
        # effect.
        *_change_to_store(FAST_STORE, gain_of_fastloader, 0.0),
    ]


def _change_to_store(text: str, gain: Callable[[float], float], kept: float) -> list[LoopWhatIf]:
    """The change to a store; empty if it may save less than LEAST_GAIN.

    gain: returns the gain for the share of loading that is left. kept: that share with a store.
    """
    # A bound is listed only if there is a gain even if the store saves half as much of loading.
    if gain((1 + kept) / 2) < LEAST_GAIN:
        return []
    return [LoopWhatIf(change=Change(text=text), gain=gain(kept), is_bound=True)]


def _remaining_share(loop: Loop) -> float:
    """Share of the time of making batches that is left with a store: the collation, and the
    dataset's transform."""
    decode_ns = sum(each.collate_ns - each.start_ns for each in loop.made)
    all_ns = sum(each.stop_ns - each.start_ns for each in loop.made)
    return 1 - decode_ns * (1 - (loop.transform_share or 0.0)) / all_ns if all_ns else 1.0


def _persistent_workers(loop: Loop, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    """The change to persistent_workers=True for the present workers; empty without several passes
    over a DataLoader."""
    facts = loop.facts
    passes = len(loop.passes)
    # If each pass has a DataLoader of its own, the workers end with that DataLoader.
    if not facts["num_workers"] or facts["persistent_workers"] or loop.loaders == passes:
        return []
    # The workers of a DataLoader's first pass start in any case.
    gain = shares[Part.START_UP].value * (passes - loop.loaders) / passes
    return [LoopWhatIf(change=Change(settings={"persistent_workers": True}), gain=gain)]
