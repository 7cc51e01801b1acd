"""Build the ladder of a job: the time that each part adds to an epoch, a difference of two rungs.

A rung is the job without some of its parts. Each rung has one part more than the rung below it, and
the last rung is the job as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fastloop.core import stats
from fastloop.core.explanation import Ladder, LadderRow
from fastloop.core.parts import Part
from fastloop.explain.certainty import draw_seconds, draw_shares, estimate_from
from fastloop.explain.ladder_limits import find_slower_steps, limit_draws, reach_next, spread_of
from fastloop.explain.rung_passes import Round
from fastloop.explain.rungs import increase_by_rung, starting_rungs

T = TypeVar("T", float, np.ndarray)


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
    drawn_s, levels = draw_seconds([_whole_epochs(times, batches) for times in rounds])
    noise = max(levels.noise, spread_of(epochs))
    seconds = limit_draws(drawn_s, rounds, loader_shares, noise, overlaps=work_s is not None)
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
        wait_share=reach_next(
            estimate_from(1 - perfect), rounds, device, overlaps=work_s is not None
        ),
        explained=sum(max(0.0, row.share.value) for row in rows),
        residue=sum(max(0.0, -row.share.high) for row in rows),
        start_up_s=stats.estimate([times[last].start_up_s for times in rounds]),
        noise=levels.noise,
        slower_steps=None if work_s is not None else find_slower_steps(rounds, shares),
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


def _start_s(times: Round) -> float:
    """Seconds of start-up of an epoch, in one round."""
    starting, before = starting_rungs(times)
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
    return draw_shares(shares, len(epoch_draws), seed=1) * epoch_draws


def _split(seconds: Mapping[Part, T], start_s: T, late_s: T) -> dict[Part, T]:
    """Seconds of a whole epoch by part, lowest first; their sum is the seconds of the job.

    start_s: start-up of the loader. late_s: further start-up, of the source of samples.
    """
    rungs = list(seconds)
    starting, before = starting_rungs(seconds)
    # Each start-up is taken from the time that its rung adds. It is limited to that time, because
    # the rung's own part would be negative otherwise.
    start_s = _limit_start_up(start_s, seconds[starting] - seconds[before])
    sampling = _sampling_rung(seconds)
    below = rungs[rungs.index(sampling) - 1]
    late_s = _limit_start_up(late_s, seconds[sampling] - seconds[below])
    parts: dict[Part, T] = {}
    for rung, added in increase_by_rung(seconds).items():
        if rung is starting:
            parts[Part.START_UP] = start_s + late_s
        parts[rung] = added - start_s if rung is starting else added
    parts[sampling] -= late_s
    return parts


def _limit_start_up(start_s: T, added_s: T) -> Any:
    """The start-up, at least zero and at most the time that its rung adds."""
    return np.clip(start_s, 0.0, np.maximum(0.0, added_s))


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
