"""Build the ladder of a job: the time that each part adds to an epoch.

A rung is the job without some of its parts. Each rung has one part more than the rung below it, and
the last rung is the job as it is. So the time that a part adds is the difference of two rungs. A
round times each rung once, in processes of their own.

Times are noisy. A draw is a random guess at the undisturbed times of all rungs, see certainty.py.
Values are computed for each draw, and the first draw gives the estimate.
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

    batches: number of batches in a whole epoch.

    work_s: seconds of each part in an epoch in which loading does not overlap the steps; a missing
    part is unknown. None: the job itself overlaps nothing.

    serial: the round without overlap from which work_s was computed. Its first wait shows the time
    of a first load, which is no part of the Dataset's start-up in the workers. None: that start-up
    counts as zero, because workers don't start in each epoch.

    loader_shares: for each measurement, seconds of the loader without steps divided by seconds of
    the job, for the same batches; empty: not measured.

    device: type of the device of the steps; empty: not known.
    """
    last = list(rounds[0])[-1]
    epochs = [times[last].whole_epoch_s(batches) for times in rounds]
    drawn_s, levels = draw_seconds([_whole_epochs(times, batches) for times in rounds])
    noise = max(levels.noise, spread_of(epochs))
    seconds = limit_draws(drawn_s, rounds, loader_shares, noise, overlaps=work_s is not None)
    starts = [[_start_s(each) for each in rounds], [_late_start_s(each, serial) for each in rounds]]
    drawn = [_draw_starts(each, epochs, seconds[last]) for each in starts]
    # Each draw is split by itself, so the parts of a draw add up to its seconds of the job. The
    # noise of a rung is in the rung's own part and, with the opposite sign, in the next part.
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
    """A row of the ladder for each part.

    shares: draws of each part's share of an epoch. epoch_s: seconds of an epoch of the job. work_s:
    as for `build_ladder`.
    """
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
    """Seconds of an epoch with that number of batches, by rung."""
    return {rung: each.whole_epoch_s(batches) for rung, each in times.items()}


def _start_s(times: Round) -> float:
    """Seconds in which the loader starts up and ends in an epoch, in one round."""
    starting, before = starting_rungs(times)
    start_s = times[starting].start_up_s - times[before].start_up_s
    # The loop waits while a worker writes the first batch to shared memory, which is work on a
    # batch. As far as it exceeds the wait for a later batch, it counts as hand-off, not start-up.
    first_s = max(0.0, times[starting].share_s - times[starting].later_wait_s)
    return start_s - min(first_s, max(0.0, start_s))


def _sampling_rung(times: Mapping[Part, Any]) -> Part:
    """The lowest rung that makes samples."""
    return Part.DECODE if Part.DECODE in times else list(times)[-1]


def _late_start_s(times: Round, serial: Round | None) -> float:
    """Seconds in which the source of samples starts up, such as a Dataset that opens a file.

    The result is one round's, and noise may make it negative. serial: as for `build_ladder`.
    """
    rung = _sampling_rung(times)
    if serial is None or Part.HAND_OFF not in times or rung not in serial:
        return 0.0
    # The rung HAND_OFF has ready batches, and so only the start-up of the loader. The rest of the
    # start-up also contains the first load, which is work on a batch, and is subtracted. A negative
    # result is kept: the median of results that are cut off at zero would turn noise into start-up.
    # `_split` limits the draws later.
    first_load_s = max(0.0, serial[rung].first_wait_s - times[rung].later_wait_s)
    return times[rung].start_up_s - times[Part.HAND_OFF].start_up_s - first_load_s


def _draw_starts(
    starts: Sequence[float], epochs: Sequence[float], epoch_draws: np.ndarray
) -> np.ndarray:
    """Draws of the seconds of a start-up, the likeliest draw first.

    starts: seconds of the start-up in each round. epochs: seconds of the job in each round.
    epoch_draws: draws of the seconds of the job.
    """
    # A slow round slows down the start-up and the epoch alike, so their ratio is drawn.
    shares = [start_s / epoch for start_s, epoch in zip(starts, epochs, strict=True)]
    return draw_shares(shares, len(epoch_draws), seed=1) * epoch_draws


def _split(seconds: Mapping[Part, T], start_s: T, late_s: T) -> dict[Part, T]:
    """Seconds of a whole epoch by part, the lowest first; their sum is the seconds of the job.

    seconds: seconds of each rung, the lowest first; an array holds draws. start_s: seconds of the
    loader's start-up. late_s: seconds of the start-up of the source of samples.
    """
    rungs = list(seconds)
    starting, before = starting_rungs(seconds)
    # Each start-up is taken from the time that its rung adds. The start-up is limited to that time,
    # because otherwise the rest, which is the rung's own part, would be negative.
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
    """The seconds of a start-up, at least zero and at most the seconds that its rung adds."""
    return np.clip(start_s, 0.0, np.maximum(0.0, added_s))


def _find_sure_greatest(shares: Mapping[Part, np.ndarray]) -> dict[Part, float]:
    """Part -> share of the draws in which this part is the greatest; the step is left out."""
    rungs = [rung for rung in shares if rung is not Part.STEP]
    places = np.stack([shares[rung] for rung in rungs]).argmax(axis=0)
    return {rung: float((places == place).mean()) for place, rung in enumerate(rungs)}


def _find_hidden_ms(
    rung: Part, exposed_ms: float, batches: int, work_s: Mapping[Part, float] | None
) -> float | None:
    """Milliseconds per batch of a part's work that don't make the epoch longer; None: not known.

    exposed_ms: milliseconds per batch by which the part makes the epoch longer.
    """
    # The loop's own thread steps, copies and starts the loader, so nothing of that is hidden.
    if work_s is None or rung in (Part.STEP, Part.COPY, Part.START_UP):
        return 0.0
    if rung not in work_s:
        return None
    return max(0.0, 1e3 * work_s[rung] / batches - max(0.0, exposed_ms))


def work_of(times: Round, batches: int) -> dict[Part, float]:
    """Seconds of a whole epoch by part, from a round in which nothing overlaps."""
    parts = _split(_whole_epochs(times, batches), _start_s(times), 0.0)
    return {rung: max(0.0, seconds) for rung, seconds in parts.items()}
