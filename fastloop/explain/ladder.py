"""The ladder: what each part of a job adds to an epoch, by difference within interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.stats import Estimate
from fastloop.explain.passes import EpochTimes
from fastloop.explain.rungs import Rung

Round = Mapping[Rung, EpochTimes]
"""Times of every rung that is run, lowest first."""


@dataclass(frozen=True, kw_only=True)
class LadderRow:
    """A part of an epoch."""

    rung: Rung
    exposed_ms: Estimate
    """By how much the epoch is longer for it, per batch."""
    share: Estimate
    """The same as a share of the epoch."""
    hidden_ms: float | None
    """The rest of its work, done while the loop stepped or another worker worked; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """An epoch as the sum of its parts, and what a perfect loader would make of it."""

    rows: tuple[LadderRow, ...]
    batches: int
    """In a whole epoch."""
    epoch_s: Estimate
    """The job as it is."""
    perfect_s: Estimate
    """The steps on batches that are on the device already: a perfect loader."""
    wait_share: Estimate
    """The share of the epoch that a perfect loader would save."""
    explained: float
    """Sum of the parts' medians, as a share of the epoch; parts below zero count as none."""
    start_up_s: Estimate
    """What the job's epochs take for their first batch, beyond that for another, and to end."""

    @property
    def residue(self) -> float:
        """Share of the epoch by which the parts miss the whole."""
        return abs(1 - self.explained)


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
