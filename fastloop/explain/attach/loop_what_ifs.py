"""Predict the gains of other settings of a script's DataLoader by the model of its loop.

A gain is the share of the loop's time that a change saves. A pass is one iteration over the
DataLoader.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DEEP_PREFETCH
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.fastloader_gain import find_fastloader_gain
from fastloop.explain.attach.loop_model import LoopModel, model_loop
from fastloop.explain.attach.loops import Loop
from fastloop.explain.change import FASTLOADER, FORK, LEAST_GAIN, Change
from fastloop.explain.model import MOST_MISSED_OF_SCRIPT, WORST_CROWDED_POWER, is_close

WORKER_COUNTS = (0, 1, 2, 4, 8)
"""Numbers of workers for which a gain is predicted."""
STORE = "samples from a store (fastloop.write_store)"
FAST_STORE = "fastloop.FastLoader on a store"
"""Names of the changes to a store, a copy of the samples that has to be written first."""
STARTS_UNSURE = 2
"""Factor by which workers may take longer to start than in the tries of worker_starts.py. For a
loop without workers, a number of workers is listed only if it saves time even with such starts. For
any loop, it is listed only if it saves time even if the workers slow down a step in several threads
as much as WORST_CROWDED_POWER says."""


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


@dataclass(frozen=True, kw_only=True)
class LoopPredictions:
    """The changes of a loop's DataLoader that are predicted to save time, or may do so."""

    model_ratio: float | None = None
    """The model's time of the loop as it is, without starts, divided by the measured time; None:
    there is no model, because no batch was recorded as it was made, or because the loop is over
    another iterable than a DataLoader."""
    what_ifs: tuple[LoopWhatIf, ...] = ()
    """FastLoader comes first if it reads the dataset natively, without calls of Python. The other
    changes follow, the greatest gain first. If the model misses the measured time by too much, no
    gain is predicted, and there is at most the change to FastLoader."""

    def do_workers_pay(self, present: int) -> bool:
        """False if the model predicts that fewer workers save most, or that none save time in a
        loop without workers.

        present: number of workers of the loop.
        """
        if self.model_ratio is None or not is_close(self.model_ratio, MOST_MISSED_OF_SCRIPT):
            return True
        settings = [each.change.settings for each in self.what_ifs]
        counts = [each["num_workers"] for each in settings if "num_workers" in each]
        return counts[0] > present if counts else present > 0


def predict_changes(loop: Loop, shares: dict[Part, Estimate]) -> LoopPredictions:
    """The changes that are predicted to save at least LEAST_GAIN, and those without a prediction.

    shares: each part's share of the loop's time.
    """
    model = None if loop.facts.get("is_watched") else model_loop(loop)
    if model is None:
        return LoopPredictions()
    is_native = bool(loop.facts.get("is_native"))
    if not is_close(model.ratio, MOST_MISSED_OF_SCRIPT):
        unknown = LoopWhatIf(change=_change_to_fastloader(loop), gain=None)
        return LoopPredictions(model_ratio=model.ratio, what_ifs=(unknown,) if is_native else ())
    found = [
        *_predict_worker_counts(model),
        *_predict_prefetch(model),
        *_predict_forks(model),
        *_predict_fastloader(model),
        *_predict_stores(model, shares),
        *_predict_kept_workers(loop, shares),
    ]
    worth = [each for each in found if each.gain is None or each.gain >= LEAST_GAIN]
    # A FastLoader that reads the dataset natively needs no other setting and no store, so it is
    # first.
    worth.sort(
        key=lambda each: (each.change.is_fastloader and is_native, each.gain or 0.0), reverse=True
    )
    return LoopPredictions(model_ratio=model.ratio, what_ifs=tuple(worth))


def _predict_worker_counts(model: LoopModel) -> list[LoopWhatIf]:
    """The changes to other numbers of workers of WORKER_COUNTS, up to two per usable core."""
    most = 2 * usable_cores()
    # The samples may be divisible only among fewer workers.
    divisible = model.loop.facts["most_workers"]
    if divisible is not None:
        most = min(most, divisible)
    return [
        change
        for workers in WORKER_COUNTS
        if workers != model.workers and workers <= most
        for change in _predict_workers(model, workers)
    ]


def _predict_workers(model: LoopModel, workers: int) -> list[LoopWhatIf]:
    """The changes to this number of workers, alone and with persistent_workers, that save at least
    LEAST_GAIN.

    With persistent_workers, the change must save LEAST_GAIN more than without.
    """
    passes, loaders = len(model.loop.passes), model.loop.loaders
    # Settings beside the number of workers, and the number of times that the workers then start.
    ways: list[tuple[dict[str, bool], int]] = [({}, passes)]
    # If a DataLoader is iterated over several times, its workers may stay from pass to pass.
    if workers and not model.workers and loaders < passes:
        ways.append(({"persistent_workers": True}, loaders))
    found = []
    best = 0.0
    for kept, times in ways:
        gain = model.gain(workers, model.prefetch, model.starts_with(workers, times))
        slow_starts_s = model.starts_with(workers, STARTS_UNSURE * times)
        least = model.gain(
            workers, model.prefetch, slow_starts_s, crowded_power=WORST_CROWDED_POWER
        )
        if least >= LEAST_GAIN and gain >= best + LEAST_GAIN:
            change = Change(settings={"num_workers": workers, **kept})
            found.append(LoopWhatIf(change=change, gain=gain))
            best = gain
    return found


def _predict_prefetch(model: LoopModel) -> list[LoopWhatIf]:
    """The change to DEEP_PREFETCH; empty without workers, or if they make as many batches ahead."""
    if not model.workers or model.prefetch >= DEEP_PREFETCH:
        return []
    gain = model.gain(model.workers, DEEP_PREFETCH, model.starts_s)
    return [LoopWhatIf(change=Change(settings={"prefetch_factor": DEEP_PREFETCH}), gain=gain)]


def _predict_forks(model: LoopModel) -> list[LoopWhatIf]:
    """The change to forked workers; empty if no workers are spawned, or if forks are not safe.

    Empty also if the change would save less than LEAST_GAIN with starts that take STARTS_UNSURE
    times as long. A spawned worker is a new interpreter, which imports the script and its
    libraries.
    """
    facts = model.loop.facts
    # A fork can't use CUDA if the script does, and on macOS the system's libraries may break in a
    # fork. The documentation of some libraries says that a fork after their import may hang.
    is_unsafe = facts.get("uses_cuda") or facts.get("has_unsafe_forks")
    is_safe = sys.platform == "linux" and not is_unsafe
    if not model.workers or facts.get("start_method") != "spawn" or not is_safe:
        return []
    times = model.loop.loaders if facts.get("persistent_workers") else len(model.loop.passes)
    gain, least = (
        model.gain(model.workers, model.prefetch, model.starts_of_forks(count))
        for count in (times, STARTS_UNSURE * times)
    )
    change = Change(settings={"multiprocessing_context": FORK})
    return [LoopWhatIf(change=change, gain=gain)] if least >= LEAST_GAIN else []


def _predict_fastloader(model: LoopModel) -> list[LoopWhatIf]:
    """The change to FastLoader over the dataset itself; empty if it can't be made, or surely saves
    less than LEAST_GAIN."""
    found = find_fastloader_gain(model)
    if found is None:
        return []
    change = _change_to_fastloader(model.loop)
    return [LoopWhatIf(change=change, gain=found.gain, basis=found.basis)]


def _change_to_fastloader(loop: Loop) -> Change:
    """The change that puts FastLoader in the DataLoader's place, with the place in its name."""
    made_at = loop.facts.get("made_at")
    place = f" at {os.path.basename(made_at)}" if made_at else ""
    without = ", ".join(loop.facts.get("without_effect") or ())
    dropped = f" (no effect there: {without})" if without else ""
    return Change(is_fastloader=True, text=f"{FASTLOADER} in place of DataLoader{place}{dropped}")


def _predict_stores(model: LoopModel, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    """The changes to a store; empty if a store can't keep the samples, or if nothing is decoded.

    Their gains are upper bounds, because this run does not show the cost of reading a store.
    """
    loop = model.loop
    if shares[Part.DECODE].value <= 0 or loop.facts["iterable"] or loop.no_store:
        return []

    def gain_of_store(kept: float) -> float:
        return model.gain(model.workers, model.prefetch, model.starts_s, kept)

    def gain_of_fastloader(kept: float) -> float:
        return model.gain(1, DEEP_PREFETCH, 0.0, kept)

    found = []
    # The bound for FastLoader leaves nothing of loading, so the length of the queue has no effect.
    for text, gain, kept in (
        (STORE, gain_of_store, _remaining_share(loop)),
        (FAST_STORE, gain_of_fastloader, 0.0),
    ):
        # A bound is listed only if there is a gain even if the store saves half as much of loading.
        if gain((1 + kept) / 2) >= LEAST_GAIN:
            found.append(LoopWhatIf(change=Change(text=text), gain=gain(kept), is_bound=True))
    return found


def _remaining_share(loop: Loop) -> float:
    """Share of the time of making batches that is left with a store: the collation, and the
    dataset's transform."""
    decode_ns = sum(each.collate_ns - each.start_ns for each in loop.made)
    all_ns = sum(each.stop_ns - each.start_ns for each in loop.made)
    return 1 - decode_ns * (1 - (loop.transform_share or 0.0)) / all_ns if all_ns else 1.0


def _predict_kept_workers(loop: Loop, shares: dict[Part, Estimate]) -> list[LoopWhatIf]:
    """The change to persistent_workers=True for the present workers; empty without workers, if they
    stay already, or without several passes over a DataLoader."""
    facts = loop.facts
    passes = len(loop.passes)
    # If each pass has a DataLoader of its own, the workers end with that DataLoader.
    if not facts["num_workers"] or facts["persistent_workers"] or loop.loaders == passes:
        return []
    # The workers of a DataLoader's first pass start in any case.
    gain = shares[Part.START_UP].value * (passes - loop.loaders) / passes
    return [LoopWhatIf(change=Change(settings={"persistent_workers": True}), gain=gain)]
