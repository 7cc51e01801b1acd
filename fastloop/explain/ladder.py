"""The ladder: what each part of a job adds to an epoch, by difference within interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastloop.core import stats
from fastloop.core.explanation import Ladder, LadderRow, Rung
from fastloop.core.stats import Estimate
from fastloop.explain.passes import EpochTimes

Round = Mapping[Rung, EpochTimes]
"""Times of every rung that is run, lowest first."""


def build_ladder(
    rounds: Sequence[Round], batches: int, work_s: Mapping[Rung, float] | None
) -> Ladder:
    """The ladder of a job whose epochs have that many batches.

    work_s: seconds of each part in an epoch without overlap; None: the job overlaps nothing.
    """
    by_round = [_parts(times, batches) for times in rounds]
    last = list(rounds[0])[-1]
    epochs = [times[last].whole_epoch_s(batches) for times in rounds]
    perfect = [times[Rung.STEP].whole_epoch_s(batches) for times in rounds]
    rows = []
    for rung in by_round[0]:
        seconds = [parts[rung] for parts in by_round]
        exposed = stats.estimate([1e3 * each / batches for each in seconds])
        shares = [each / epoch for each, epoch in zip(seconds, epochs, strict=True)]
        hidden = _find_hidden_ms(rung, exposed.value, batches, work_s)
        share = stats.estimate(shares)
        rows.append(LadderRow(rung=rung, exposed_ms=exposed, share=share, hidden_ms=hidden))
    return Ladder(
        rows=tuple(rows),
        batches=batches,
        epoch_s=stats.estimate(epochs),
        perfect_s=stats.estimate(perfect),
        wait_share=saving(perfect, epochs),
        explained=sum(max(0.0, row.share.value) for row in rows),
        start_up_s=stats.estimate([times[last].start_up_s for times in rounds]),
    )


def saving(new: Sequence[float], base: Sequence[float]) -> Estimate:
    """The share of `base` that `new` saves, paired by round."""
    ratio = stats.ratio_or_range(new, base)
    assert ratio is not None  # both are lists of times
    return Estimate(
        value=1 - ratio.estimate,
        low=1 - ratio.high,
        high=1 - ratio.low,
        is_interval=ratio.is_interval,
    )


def _parts(times: Round, batches: int) -> dict[Rung, float]:
    """Seconds of a whole epoch by part, for one round; they add up to the job's."""
    rungs = list(times)
    wholes = [times[rung].whole_epoch_s(batches) for rung in rungs]
    parts = {rungs[0]: wholes[0]}
    parts |= {rung: wholes[i] - wholes[i - 1] for i, rung in enumerate(rungs) if i}
    # where the loader runs with ready batches, its start is not that of what makes batches
    starting = Rung.HAND_OFF if Rung.HAND_OFF in times else rungs[-1]
    before = rungs[rungs.index(starting) - 1]
    start_s = times[starting].start_up_s - times[before].start_up_s
    parts[starting] -= start_s
    ordered: dict[Rung, float] = {}
    for rung, seconds in parts.items():
        if rung is starting:
            ordered[Rung.START_UP] = start_s
        ordered[rung] = seconds
    return ordered


def _find_hidden_ms(
    rung: Rung, exposed_ms: float, batches: int, work_s: Mapping[Rung, float] | None
) -> float | None:
    """Work per batch that is not exposed; of steps and starts nothing is hidden."""
    if work_s is None or rung in (Rung.STEP, Rung.COPY, Rung.START_UP):
        return 0.0
    if rung not in work_s:
        return None
    return max(0.0, 1e3 * work_s[rung] / batches - max(0.0, exposed_ms))


def work_of(times: Round, batches: int) -> dict[Rung, float]:
    """Seconds of a whole epoch by part, for a round in which nothing overlaps."""
    return {rung: max(0.0, seconds) for rung, seconds in _parts(times, batches).items()}
