"""Build the ladder of a job: the time that each part adds to an epoch, a difference of two rungs.

A rung is the job without some of its parts. Each rung has one part more than the rung below it, and
the last rung is the job as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from fastloop.core import stats
from fastloop.core.explanation import Ladder, LadderRow
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.certainty import draw_seconds, estimate_from
from fastloop.explain.rung_passes import EpochTimes

T = TypeVar("T", float, np.ndarray)
Round = Mapping[Part, EpochTimes]
"""Times of every rung in one round, the lowest rung first."""


def build_ladder(
    rounds: Sequence[Round],
    batches: int,
    work_s: Mapping[Part, float] | None,
    serial: Round | None = None,
    loader_shares: Sequence[float] = (),
    device: str = "",
) -> Ladder:
    """Build the ladder of a job from the rounds in which its rungs were timed.

    batches: number of batches in a whole epoch. work_s: seconds of each part in an epoch without
    overlap; a part that it lacks is unknown; None: the job overlaps nothing. serial: the round
    without overlap from which work_s was computed; it separates the start-up of a Dataset in the
    workers from their first load. None: that start-up counts as zero, as it is if workers don't
    start in each epoch. loader_shares: for each measurement, seconds of the loader without steps
    divided by seconds of the job, for the same batches; empty: not measured. device: the type of
    the device of the steps; empty: not known.
    """
    last = list(rounds[0])[-1]
    epochs = [times[last].whole_epoch_s(batches) for times in rounds]
    # A draw is one random guess at the seconds of all rungs; the first draw is the estimate.
    seconds, levels = draw_seconds([_whole_epochs(times, batches) for times in rounds])
    seconds = _limit_by_loader(seconds, loader_shares, max(levels.noise, _spread(epochs)))
    # If the job overlaps nothing, all of its loading happens inside next().
    if work_s is None:
        seconds = _limit_by_next(seconds, rounds)
    seconds = _limit_copy(seconds, rounds)
    starts = [[_start_s(each) for each in rounds], [_late_start_s(each, serial) for each in rounds]]
    drawn = [_draw_starts(each, epochs, seconds[last]) for each in starts]
    # Each draw is split by itself, so its parts add up to the seconds of the job. The noise of a
    # rung is in the rung's own part and, with the opposite sign, in the part of the next rung.
    shares = {rung: part / seconds[last] for rung, part in _split(seconds, *drawn).items()}
    epoch_s = stats.estimate(epochs)
    rows = _build_rows(shares, epoch_s.value, batches, work_s)
    perfect = seconds[Part.STEP] / seconds[last]
    return Ladder(
        rows=tuple(rows),
        batches=batches,
        epoch_s=epoch_s,
        perfect_s=estimate_from(perfect * epoch_s.value),
        wait_share=_reach_next(estimate_from(1 - perfect), rounds, work_s, device),
        explained=sum(max(0.0, row.share.value) for row in rows),
        residue=sum(max(0.0, -row.share.high) for row in rows),
        start_up_s=stats.estimate([times[last].start_up_s for times in rounds]),
        noise=levels.noise,
        slower_steps=None if work_s is not None else _find_slower_steps(rounds, shares),
        rounds=len(rounds),
    )


def _build_rows(
    shares: Mapping[Part, np.ndarray],
    epoch_s: float,
    batches: int,
    work_s: Mapping[Part, float] | None,
) -> list[LadderRow]:
    """A row for each part, from the draws of the part's share of an epoch."""
    batch_ms = 1e3 * epoch_s / batches
    sure = _find_sure_greatest(shares)
    rows = []
    for rung, draws in shares.items():
        exposed = estimate_from(draws * batch_ms)
        rows.append(
            LadderRow(
                rung=rung,
                exposed_ms=exposed,
                share=estimate_from(draws),
                hidden_ms=_find_hidden_ms(rung, exposed.value, batches, work_s),
                sure_greatest=sure.get(rung, 0.0),
            )
        )
    return rows


def _whole_epochs(times: Round, batches: int) -> dict[Part, float]:
    return {rung: each.whole_epoch_s(batches) for rung, each in times.items()}


def _spread(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms of the values; 0 for a single value."""
    return stats.std([math.log(value) for value in values]) or 0.0


def _limit_by_loader(
    seconds: Mapping[Part, np.ndarray], shares: Sequence[float], noise: float
) -> Mapping[Part, np.ndarray]:
    """Limit the draws: no rung differs from the job by more than the loader takes alone.

    shares: the loader_shares of `build_ladder`; empty: no limit is known. noise: relative standard
    deviation of a measurement.
    """
    # Steps and loading that share the cores take at most as long as one after the other: no part of
    # loading adds more to an epoch than all of loading takes alone. A difference of two rungs with
    # long steps may exceed that limit by noise, which is no evidence against the limit.
    if not shares:
        return seconds
    error = max(noise, _spread(shares)) / len(shares) ** 0.5
    normals = np.random.default_rng(2).standard_normal(len(seconds[Part.STEP]))
    # As in draw_seconds, the first draw is the estimate.
    normals[0] = 0
    return _clip_rungs(seconds, list(seconds), stats.median(shares) * np.exp(error * normals))


def _limit_by_next(
    seconds: Mapping[Part, np.ndarray], rounds: Sequence[Round]
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of a job that overlaps nothing: no part of loading takes longer than next().

    If steps between loads are slower far beyond noise, the draws stay as they are.
    """
    last = list(seconds)[-1]
    shares = {rung: part / seconds[last] for rung, part in _differences(seconds).items()}
    slower = _find_slower_steps(rounds, shares)
    # If the interval of few rounds only just excludes zero, the clock around next() is the better
    # evidence.
    if slower.low > max(0.0, slower.value / 2):
        return seconds
    _, below = _starting_rungs(seconds)
    rungs = list(seconds)
    in_next = _draw_shares([times[last].next_share for times in rounds], len(seconds[last]), seed=3)
    # Lower rungs are not limited: they also lack the copy to the device, which is not in next().
    return _clip_rungs(seconds, rungs[rungs.index(below) :], np.maximum(0.0, in_next))


def _limit_copy(
    seconds: Mapping[Part, np.ndarray], rounds: Sequence[Round]
) -> Mapping[Part, np.ndarray]:
    """Limit the draws: placing batches on the device adds at most the time that a clock measured.

    If a round has no such time, the draws stay as they are.
    """
    # The same steps may take a quarter longer in one pass than in another, if they compute in
    # several threads. Such a difference is no evidence of copies that the clock did not measure.
    passes = [times[Part.COPY] for times in rounds if Part.COPY in times]
    shares = [each.place_s / each.seconds for each in passes if each.place_s is not None]
    if not shares or len(shares) < len(rounds):
        return seconds
    step_s, copy_s = seconds[Part.STEP], seconds[Part.COPY]
    placing = np.maximum(0.0, _draw_shares(shares, len(copy_s), seed=4))
    return {**seconds, Part.COPY: np.clip(copy_s, step_s, step_s + placing * copy_s)}


def _reach_next(
    wait: Estimate, rounds: Sequence[Round], work_s: Mapping[Part, float] | None, device: str
) -> Estimate:
    """The share that a perfect loader saves, with an interval that reaches the time in next().

    The interval stays as it is if loading may overlap the steps (work_s is not None), or if the
    steps run on another device than "cpu".
    """
    # Noise of the steps may bring the difference of two rungs below the measured wait of the loop.
    # On other devices that wait is no lower limit: the device may compute while the loop loads.
    if work_s is not None or device != "cpu":
        return wait
    last = list(rounds[0])[-1]
    in_next = stats.median([times[last].next_share for times in rounds])
    return replace(wait, high=max(wait.high, in_next))


def _clip_rungs(
    seconds: Mapping[Part, np.ndarray], rungs: Sequence[Part], share: np.ndarray
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of these rungs to the job's draws, plus or minus this share of them."""
    job = seconds[list(seconds)[-1]]
    low, high = (1 - share) * job, (1 + share) * job
    return {
        rung: np.clip(draws, low, high) if rung in rungs else draws
        for rung, draws in seconds.items()
    }


def _starting_rungs(times: Mapping[Part, Any]) -> tuple[Part, Part]:
    """The rung in which the loader starts, and the rung below it."""
    rungs = list(times)
    # HAND_OFF runs the loader with ready batches: its start-up is the start of processes alone,
    # without the start of a dataset that opens files.
    starting = Part.HAND_OFF if Part.HAND_OFF in times else rungs[-1]
    return starting, rungs[rungs.index(starting) - 1]


def _start_s(times: Round) -> float:
    """Seconds of start-up of an epoch, in one round."""
    starting, before = _starting_rungs(times)
    start_s = times[starting].start_up_s - times[before].start_up_s
    # Nothing hides the time in which a worker writes the first batch to shared memory. Yet it is
    # work on a batch: its excess over the wait for a later batch counts as hand-off, not start-up.
    first_s = max(0.0, times[starting].share_s - times[starting].later_wait_s)
    return start_s - min(first_s, max(0.0, start_s))


def _sampling_rung(times: Mapping[Part, Any]) -> Part:
    """The lowest rung that makes samples."""
    return Part.DECODE if Part.DECODE in times else list(times)[-1]


def _late_start_s(times: Round, serial: Round | None) -> float:
    """Seconds in which the source of samples starts up, such as a Dataset that opens a file.

    Noise may make them negative in a single round.
    """
    rung = _sampling_rung(times)
    if serial is None or Part.HAND_OFF not in times or rung not in serial:
        return 0.0
    # This is the start-up beyond that with ready batches, minus the time to load the first batch:
    # nothing hides that load, but it is work on a batch. A negative value is kept here. If each
    # round were cut off at zero, their median would turn noise into start-up; `_split` cuts later.
    first_load_s = max(0.0, serial[rung].first_wait_s - times[rung].later_wait_s)
    return times[rung].start_up_s - times[Part.HAND_OFF].start_up_s - first_load_s


def _draw_starts(
    starts: Sequence[float], epochs: Sequence[float], epoch_draws: np.ndarray
) -> np.ndarray:
    """Draws of the start-up of an epoch in seconds, the likeliest one first."""
    # Each start-up is divided by the epoch of its own round: a slow round has slowed down both.
    shares = [start_s / epoch for start_s, epoch in zip(starts, epochs, strict=True)]
    return _draw_shares(shares, len(epoch_draws), seed=1) * epoch_draws


def _draw_shares(shares: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Draws of a share of the epoch that each round has measured, the likeliest one first."""
    value = stats.median(shares)
    # A single round shows no deviation: half of the value is assumed.
    error = (stats.std(shares) or abs(value) / 2) / len(shares) ** 0.5
    # These draws are independent of the draws of the levels, which have another seed.
    normals = np.random.default_rng(seed).standard_t(len(shares), count)
    # As in draw_seconds, the first draw is the estimate.
    normals[0] = 0
    return value + error * normals


def _split(seconds: Mapping[Part, T], start_s: T, late_s: T) -> dict[Part, T]:
    """Seconds of a whole epoch by part, lowest first; their sum is the seconds of the job.

    start_s: start-up of the loader. late_s: further start-up, of the source of samples.
    """
    rungs = list(seconds)
    starting, before = _starting_rungs(seconds)
    # Each start-up is taken from the time that its rung adds. It is limited to that time, because
    # the rung's own part would be negative otherwise.
    start_s = _limit(start_s, seconds[starting] - seconds[before])
    sampling = _sampling_rung(seconds)
    below = rungs[rungs.index(sampling) - 1]
    late_s = _limit(late_s, seconds[sampling] - seconds[below])
    parts: dict[Part, T] = {}
    for rung, added in _differences(seconds).items():
        if rung is starting:
            parts[Part.START_UP] = start_s + late_s
        parts[rung] = added - start_s if rung is starting else added
    parts[sampling] -= late_s
    return parts


def _differences(seconds: Mapping[Part, T]) -> dict[Part, T]:
    """The time that each rung adds to the one below it; the lowest rung has its own time."""
    added = {rung: seconds[rung] - seconds[below] for below, rung in pairwise(seconds)}
    first = next(iter(seconds))
    return {first: seconds[first], **added}


def _limit(start_s: T, added_s: T) -> Any:
    """The start-up, at least zero and at most the time that its rung adds."""
    return np.clip(start_s, 0.0, np.maximum(0.0, added_s))


def _find_slower_steps(rounds: Sequence[Round], shares: Mapping[Part, np.ndarray]) -> Estimate:
    """Share of the epoch that is neither in next(), nor in the step or the loop's other work.

    The job overlaps nothing. So this share is the time by which its steps are slower than steps
    without loads between them.
    """
    last = list(rounds[0])[-1]
    starting, _ = _starting_rungs(rounds[0])
    rungs = list(rounds[0])
    # The rungs below the loader, the step among them, are the loop's work outside of next().
    in_loop = [shares[rung] for rung in rungs[: rungs.index(starting)]]
    in_next = stats.median([times[last].next_share for times in rounds])
    return estimate_from(1 - in_next - np.sum(in_loop, axis=0))


def _find_sure_greatest(shares: Mapping[Part, np.ndarray]) -> dict[Part, float]:
    """For each part except the step, the share of draws in which it is the greatest."""
    rungs = [rung for rung in shares if rung is not Part.STEP]
    places = np.stack([shares[rung] for rung in rungs]).argmax(axis=0)
    return {rung: float((places == place).mean()) for place, rung in enumerate(rungs)}


def _find_hidden_ms(
    rung: Part, exposed_ms: float, batches: int, work_s: Mapping[Part, float] | None
) -> float | None:
    """Milliseconds of a part's work on a batch that are not exposed; None: not known."""
    # The loop's own thread steps, copies and starts, so nothing of that is hidden.
    if work_s is None or rung in (Part.STEP, Part.COPY, Part.START_UP):
        return 0.0
    if rung not in work_s:
        return None
    return max(0.0, 1e3 * work_s[rung] / batches - max(0.0, exposed_ms))


def work_of(times: Round, batches: int) -> dict[Part, float]:
    """Seconds of a whole epoch by part, from a round in which nothing overlaps."""
    parts = _split(_whole_epochs(times, batches), _start_s(times), 0.0)
    return {rung: max(0.0, seconds) for rung, seconds in parts.items()}
