"""Predict the gain of FastLoader in place of a script's DataLoader, from attach's measurements.

FastLoader reads images, arrays and tensors natively, by code in C without calls of Python. It reads
a Dataset of Python in a thread beside the loop, or in processes if the DataLoader has workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastloop.core.loading_settings import DEEP_PREFETCH, TORCH_PREFETCH
from fastloop.core.number_text import show_percent
from fastloop.core.thread_turns import CONFIRMED, HANDOVER_NS, HANDOVER_SHARE, TURN
from fastloop.explain.attach.edit_call import LOADER
from fastloop.explain.attach.loop_model import LEAST_TIMED_S, LoopModel
from fastloop.explain.attach.loops import Loop
from fastloop.explain.change import LEAST_GAIN
from fastloop.explain.model import Machinery, Phase, epoch_seconds

TENSOR_DATASET = "TensorDataset"
"""Class of the dataset of which FastLoader reads the tensors as rows."""
KEPT_OF_ROWS = 0.1
"""Share of the time of loading that is left if images in memory, such as MNIST's, or tensors are
read as rows instead of one by one, in large batches. Measured: 0.02 to 0.05 in batches of 128, 0.13
to 0.15 if images are cropped or batches have 16 samples, 0.65 to 1.03 in batches of one sample."""
KEPT_OF_RESIZED = 0.28
"""Share of the time of loading that is left if images in memory are read as rows, and Pillow
resizes each image. Measured: 0.22 to 0.28 for images of 28 pixels that are resized to 32, in
batches of 64."""


@dataclass(frozen=True, kw_only=True)
class FastLoaderGain:
    """The gain of FastLoader, or the reason why it is not predicted."""

    gain: float | None
    """Share of the loop's time that FastLoader saves; None: the gain is not predicted."""
    basis: str = ""
    """The evidence for the gain, or the reason why none is predicted; empty for a native gain."""


def find_fastloader_gain(model: LoopModel) -> FastLoaderGain | None:
    """The gain of FastLoader with the arguments of the DataLoader; None if FastLoader can't take
    its place.

    None also for a Dataset of Python if FastLoader surely saves less than LEAST_GAIN. A native gain
    may be smaller than that. The gain of a thread that reads a Dataset of Python is a lower bound:
    it counts the waits of samples alone, as if all other reading held the interpreter's lock.
    """
    loop = model.loop
    if loop.facts.get("is_in_memory") or loop.facts.get("is_resized"):
        return FastLoaderGain(gain=model.gain(0, TORCH_PREFETCH, 0.0, _find_kept_share(loop)))
    if loop.facts.get("is_native"):
        # FastLoader is assumed to take as long for a sample as the DataLoader takes now, and to
        # decode in as many threads as there are cores.
        return FastLoaderGain(gain=model.gain(max(1, int(model.cores)), DEEP_PREFETCH, 0.0))
    # A class that is derived from DataLoader may do more than FastLoader knows.
    if loop.facts["type"] != LOADER or loop.facts.get("is_derived"):
        return None
    return _explain_no_gain(loop) if model.workers else _find_gain_of_thread(model)


def _find_kept_share(loop: Loop) -> float:
    """Share of loading that is left if images in memory or tensors are read as rows."""
    of_samples = KEPT_OF_RESIZED if loop.facts.get("is_resized") else KEPT_OF_ROWS
    # A batch itself costs FastLoader about as much as a sample costs the DataLoader.
    kept = of_samples + 1 / (loop.facts.get("batch_size") or 1)
    # Tensors may have large rows. To copy them takes at most as long as to collate them does now.
    if loop.facts["dataset"] == TENSOR_DATASET:
        kept = max(kept, _find_collate_share(loop))
    return min(1.0, kept)


def _find_collate_share(loop: Loop) -> float:
    """Share of making batches that is collating them."""
    collate_ns = sum(each.stop_ns - each.collate_ns for each in loop.made)
    all_ns = sum(each.stop_ns - each.start_ns for each in loop.made)
    return collate_ns / all_ns if all_ns else 1.0


def _explain_no_gain(loop: Loop) -> FastLoaderGain | None:
    """The reason why no gain is predicted for a loop with workers; None if the loop hardly waits.

    FastLoader reads by as many processes: only their start and the way of a batch to the loop
    differ.
    """
    waits_s = float(loop.waits_ns.sum() + loop.starts_ns.sum()) / 1e9
    if waits_s < LEAST_GAIN * loop.seconds:
        return None
    basis = "its processes hand over batches in shared memory of their own, which was not measured"
    return FastLoaderGain(gain=None, basis=basis)


def _find_gain_of_thread(model: LoopModel) -> FastLoaderGain | None:
    """The gain of a thread that reads ahead, or why it is not predicted; None if it is too
    small."""
    loop = model.loop
    idle = _find_idle_share(loop)
    least = _predict_thread(model, idle or 0.0, holds_lock=True)
    most = _predict_thread(model, idle or 0.0, holds_lock=False)
    if max(least, most) < LEAST_GAIN:
        return None
    if loop.facts.get("iterable"):
        basis = "FastLoader reads an iterable in the loop, unless the call passes num_workers"
    elif loop.facts.get("gives_workers"):
        basis = (
            "the call passes num_workers=0, with which FastLoader has no thread that reads ahead"
        )
    elif idle is None:
        basis = "this run does not tell whether its samples wait or compute"
    elif least < LEAST_GAIN:
        basis = (
            f"at most {show_percent(most)}, and only if reading releases the interpreter's lock, "
            "which this run does not tell"
        )
    else:
        waits = show_percent(idle)
        basis = f"a thread reads during the step, as making a batch waits {waits} of its time"
        return FastLoaderGain(gain=least, basis=basis)
    return FastLoaderGain(gain=None, basis=basis)


def _find_idle_share(loop: Loop) -> float | None:
    """Share of the time of making batches that is neither work nor waiting for a core; None if too
    little of it was timed."""
    timed_ns = sum(each["parts"]["wall_ns"] for each in loop.usage.makes)
    return loop.usage.idle_share if timed_ns >= 1e9 * LEAST_TIMED_S else None


def _predict_thread(model: LoopModel, idle: float, *, holds_lock: bool) -> float:
    """Share of the loop's time that a thread which reads ahead saves; 0 if it saves nothing, as the
    loop then reads itself.

    idle: share of making a batch in which it waits. holds_lock: True if all work of reading and of
    the step needs the interpreter's lock.
    """
    loads = [
        [part for each in row for part in _split(each, idle, holds_lock)] for row in model.loads
    ]
    steps = [
        [_hand_over(load), *(_with_lock(each, holds_lock) for each in row)]
        for load, row in zip(loads, model.steps, strict=True)
    ]
    machinery = Machinery(
        workers=1, prefetch=TORCH_PREFETCH, cores=model.cores, other_cores=model.other_cores
    )
    saved = model.gain_of(epoch_seconds(loads, steps, machinery), model.starts_s)
    return max(0.0, saved) * _share_of_thread(model.loop)


def _share_of_thread(loop: Loop) -> float:
    """Share of the batches that the thread reads. The loop reads the first ones of each loader, and
    another turn for a comparison."""
    return max(0.0, 1 - (CONFIRMED + TURN) * loop.loaders / loop.batches)


def _split(load: Phase, idle: float, holds_lock: bool) -> list[Phase]:
    """The phases of making a batch: the wait of its samples, then the work."""
    wait = Phase(seconds=load.seconds * idle, cores=0.0)
    work = Phase(seconds=load.seconds * (1 - idle), cores=1.0, lock=1.0 if holds_lock else 0.0)
    return [wait, work]


def _with_lock(step: Phase, holds_lock: bool) -> Phase:
    return replace(step, lock=min(1.0, step.cores)) if holds_lock else step


def _hand_over(load: list[Phase]) -> Phase:
    """The phase in which the loop gets a batch from the thread."""
    worked_s = sum(each.seconds for each in load if each.cores)
    return Phase(seconds=HANDOVER_NS / 1e9 + HANDOVER_SHARE * worked_s)
