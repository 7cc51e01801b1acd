"""Split the seconds of an epoch into parts: the time that each rung adds, and the start-up.

A rung is the job without some of its parts, see rungs.py. The time of a part is the difference of
two rungs. Start-up has no rung: it is contained in the times that two rungs add. On one rung the
loader starts, for example its workers; on another one the source of samples starts, for example a
Dataset that opens a file in each worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fastloop.core.parts import Part
from fastloop.explain.rung_passes import Round

T = TypeVar("T", float, np.ndarray)
"""A number, or an array of random draws of that number."""


def work_of(times: Round, batches: int) -> dict[Part, float]:
    """Seconds of a whole epoch by part, from a round in which nothing overlaps.

    batches: number of batches in a whole epoch.
    """
    parts = split_epoch(whole_epochs(times, batches), loader_start_s(times), 0.0)
    return {part: max(0.0, seconds) for part, seconds in parts.items()}


def whole_epochs(times: Round, batches: int) -> dict[Part, float]:
    """Seconds of an epoch with that number of batches, by rung."""
    return {rung: each.whole_epoch_s(batches) for rung, each in times.items()}


def split_epoch(seconds: Mapping[Part, T], loader_s: T, source_s: T) -> dict[Part, T]:
    """Seconds of a whole epoch by part, the lowest first; their sum is the seconds of the job.

    seconds: seconds of each rung, the lowest first. loader_s, source_s: seconds in which the loader
    and the source of samples start up.
    """
    added = increase_by_rung(seconds)
    starting, _ = starting_rungs(seconds)
    sampling = _sampling_rung(seconds)
    loader_s = _limit_start_up(loader_s, added[starting])
    source_s = _limit_start_up(source_s, added[sampling])
    parts: dict[Part, T] = {}
    for rung, added_s in added.items():
        if rung is starting:
            parts[Part.START_UP] = loader_s + source_s
        parts[rung] = added_s - loader_s if rung is starting else added_s
    parts[sampling] -= source_s
    return parts


def _limit_start_up(start_s: T, added_s: T) -> Any:
    """The seconds of a start-up, at least zero and at most the seconds that its rung adds."""
    # The start-up is taken from the rung's own part, which must not become negative.
    return np.clip(start_s, 0.0, np.maximum(0.0, added_s))


def loader_start_s(times: Round) -> float:
    """Seconds in which the loader starts up and ends in an epoch, in one round."""
    starting, below = starting_rungs(times)
    start_s = times[starting].start_up_s - times[below].start_up_s
    # The loop waits while a worker writes the first batch to shared memory, which is work on a
    # batch. As far as it exceeds the wait for a later batch, it counts as hand-off, not start-up.
    first_s = max(0.0, times[starting].share_s - times[starting].later_wait_s)
    return start_s - min(first_s, max(0.0, start_s))


def source_start_s(times: Round, serial: Round | None) -> float:
    """Seconds in which the source of samples starts up in an epoch, in one round.

    Noise may make the result negative. serial: a round without overlap, the first wait of which
    shows the time of a first load. None: the result is 0, because the source does not start in each
    epoch, or because the time of a first load is not known. The result is also 0 if the loader
    can't be taken apart.
    """
    rung = _sampling_rung(times)
    if serial is None or Part.HAND_OFF not in times or rung not in serial:
        return 0.0
    # The rung HAND_OFF has ready batches, and so only the start-up of the loader. The rest of the
    # start-up also contains the first load, which is work on a batch, and is subtracted. A negative
    # result is kept: the median of results that are cut off at zero would turn noise into start-up.
    # `split_epoch` limits the start-up later.
    first_load_s = max(0.0, serial[rung].first_wait_s - times[rung].later_wait_s)
    return times[rung].start_up_s - times[Part.HAND_OFF].start_up_s - first_load_s


def starting_rungs(times: Mapping[Part, Any]) -> tuple[Part, Part]:
    """The rung that shows the start-up of the loader, and the rung below it.

    times: the rungs of the job, lowest first, as keys; the values are not used.
    """
    rungs = list(times)
    # HAND_OFF runs the loader with ready batches. Its start-up is therefore the start of processes
    # alone, without the start of a dataset that opens files.
    starting = Part.HAND_OFF if Part.HAND_OFF in times else rungs[-1]
    return starting, rungs[rungs.index(starting) - 1]


def _sampling_rung(times: Mapping[Part, Any]) -> Part:
    """The lowest rung that makes samples. times: as for `starting_rungs`."""
    return Part.DECODE if Part.DECODE in times else list(times)[-1]


def increase_by_rung(seconds: Mapping[Part, T]) -> dict[Part, T]:
    """Rung -> the seconds that it adds to the rung below it; the lowest rung keeps its seconds.

    seconds: the seconds of each rung, lowest first.
    """
    added = {rung: seconds[rung] - seconds[below] for below, rung in pairwise(seconds)}
    first = next(iter(seconds))
    return {first: seconds[first], **added}
