"""Build the ladder of a job: the time that each part adds to an epoch, with its certainty.

A rung is the job without some of its parts. Each rung has one part more than the rung below it, and
the last rung is the job as it is. For a user's loop, the ladder is built in the same way; "job"
then stands for the loop. A round times each rung once. The times are noisy, so `build_ladder` works
on draws: arrays of possible values of the undisturbed times, the likeliest first (see
certainty.py). It

1. draws the seconds of each rung,
2. limits the draws by measurements that a noisy difference of two rungs can't refute: the time of
   the loader without steps, the time in the loader's next(), and the time of placing batches by a
   clock,
3. splits the draws into parts, of which the start-up is one (see epoch_parts.py),
4. summarizes the draws of each part as a row of the ladder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fastloop.core import stats
from fastloop.core.explanation import Ladder, LadderRow
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.certainty import draw_seconds, draw_shares, estimate_from
from fastloop.explain.epoch_parts import (
    increase_by_rung,
    loader_start_s,
    source_start_s,
    split_epoch,
    starting_rungs,
    whole_epochs,
)
from fastloop.explain.rung_passes import Round


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

    serial: the round without overlap from which work_s was computed. It shows the time of a first
    load, which is no part of the start-up of the source of samples. None: that start-up counts as
    zero, because the source does not start in each epoch, or because no such round is at hand.

    loader_shares: for each measurement, seconds of the loader without steps divided by seconds of
    the job, for the same batches; empty: not measured.

    device: type of the device of the steps; empty: not known.
    """
    job = list(rounds[0])[-1]
    overlaps = work_s is not None
    epochs = [times[job].whole_epoch_s(batches) for times in rounds]
    seconds, levels = draw_seconds([whole_epochs(times, batches) for times in rounds])
    seconds = _limit_by_loader(seconds, loader_shares, max(levels.noise, _spread_of(epochs)))
    # If the job overlaps nothing, all of its loading happens inside next().
    if not overlaps:
        seconds = _limit_by_next(seconds, rounds)
    seconds = _limit_copy(seconds, rounds)
    loader_starts = [loader_start_s(times) for times in rounds]
    source_starts = [source_start_s(times, serial) for times in rounds]
    parts = split_epoch(
        seconds,
        _draw_start_up(loader_starts, epochs, seconds[job]),
        _draw_start_up(source_starts, epochs, seconds[job]),
    )
    # Each draw is divided by its own seconds of the job, so the shares of a draw add up to 1. The
    # noise of a rung is in the rung's own part and, with the opposite sign, in the next part.
    shares = {part: draws / seconds[job] for part, draws in parts.items()}
    perfect = seconds[Part.STEP] / seconds[job]
    wait = estimate_from(1 - perfect)
    # On other devices the time in next() is no lower limit of the wait: the device may compute
    # while the loop loads.
    if not overlaps and device == "cpu":
        wait = _reach_next(wait, rounds)
    epoch_s = stats.estimate(epochs)
    rows = _build_rows(shares, epoch_s.value, batches, work_s)
    return Ladder(
        rows=rows,
        batches=batches,
        epoch_s=epoch_s,
        perfect_s=estimate_from(perfect * epoch_s.value),
        wait_share=wait,
        explained=sum(max(0.0, row.share.value) for row in rows),
        residue=sum(max(0.0, -row.share.high) for row in rows),
        start_up_s=stats.estimate([times[job].start_up_s for times in rounds]),
        noise=levels.noise,
        slower_steps=None if overlaps else _find_slower_steps(rounds, shares),
        rounds=len(rounds),
    )


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
    error = max(noise, _spread_of(shares)) / len(shares) ** 0.5
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
    rungs = list(seconds)
    job = rungs[-1]
    shares = {rung: part / seconds[job] for rung, part in increase_by_rung(seconds).items()}
    slower = _find_slower_steps(rounds, shares)
    # If the interval of few rounds only just excludes zero, the clock around next() is the better
    # evidence.
    if slower.low > max(0.0, slower.value / 2):
        return seconds
    _, below = starting_rungs(seconds)
    in_next = draw_shares([times[job].next_share for times in rounds], len(seconds[job]), seed=3)
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
    placing = np.maximum(0.0, draw_shares(shares, len(copy_s), seed=4))
    return {**seconds, Part.COPY: np.clip(copy_s, step_s, step_s + placing * copy_s)}


def _clip_rungs(
    seconds: Mapping[Part, np.ndarray], rungs: Sequence[Part], share: np.ndarray
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of these rungs: each differs by at most this share from the job's draw."""
    job = seconds[list(seconds)[-1]]
    low, high = (1 - share) * job, (1 + share) * job
    return {
        rung: np.clip(draws, low, high) if rung in rungs else draws
        for rung, draws in seconds.items()
    }


def _spread_of(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms of the values; 0 for a single value."""
    return stats.std([math.log(value) for value in values]) or 0.0


def _draw_start_up(
    starts: Sequence[float], epochs: Sequence[float], epoch_draws: np.ndarray
) -> np.ndarray:
    """Draws of the seconds of a start-up, the likeliest draw first.

    starts: seconds of the start-up in each round. epochs: seconds of the job in each round.
    epoch_draws: draws of the seconds of the job.
    """
    # A slow round slows down the start-up and the epoch alike, so their ratio is drawn.
    shares = [start_s / epoch for start_s, epoch in zip(starts, epochs, strict=True)]
    return draw_shares(shares, len(epoch_draws), seed=1) * epoch_draws


def _reach_next(wait: Estimate, rounds: Sequence[Round]) -> Estimate:
    """The estimate of the wait, with an interval that reaches the measured share in next()."""
    # Noise of the steps may bring the difference of two rungs below the measured wait of the loop.
    return replace(wait, high=max(wait.high, _share_in_next(rounds)))


def _share_in_next(rounds: Sequence[Round]) -> float:
    """Median share of an epoch of the job that is in the loader's next()."""
    job = list(rounds[0])[-1]
    return stats.median([times[job].next_share for times in rounds])


def _find_slower_steps(rounds: Sequence[Round], shares: Mapping[Part, np.ndarray]) -> Estimate:
    """Share of the epoch that is neither in next(), nor in the step, nor in the loop's other work.

    In a job that overlaps nothing, this share is the time by which steps are slower than steps
    without loads between them. shares: draws of each part's share of the epoch.
    """
    starting, _ = starting_rungs(rounds[0])
    rungs = list(rounds[0])
    # The rungs below the loader, the step among them, are the loop's work outside of next().
    in_loop = [shares[rung] for rung in rungs[: rungs.index(starting)]]
    return estimate_from(1 - _share_in_next(rounds) - np.sum(in_loop, axis=0))


def _build_rows(
    shares: Mapping[Part, np.ndarray],
    epoch_s: float,
    batches: int,
    work_s: Mapping[Part, float] | None,
) -> tuple[LadderRow, ...]:
    """A row of the ladder for each part.

    shares: draws of each part's share of an epoch. epoch_s: seconds of an epoch of the job. work_s:
    as for `build_ladder`.
    """
    batch_ms = 1e3 * epoch_s / batches
    sure = _find_sure_greatest(shares)
    rows = []
    for part, draws in shares.items():
        exposed = estimate_from(draws * batch_ms)
        rows.append(
            LadderRow(
                rung=part,
                exposed_ms=exposed,
                share=estimate_from(draws),
                hidden_ms=_find_hidden_ms(part, exposed.value, batches, work_s),
                sure_greatest=sure.get(part, 0.0),
            )
        )
    return tuple(rows)


def _find_sure_greatest(shares: Mapping[Part, np.ndarray]) -> dict[Part, float]:
    """Part -> share of the draws in which this part is the greatest; the step is left out."""
    parts = [part for part in shares if part is not Part.STEP]
    places = np.stack([shares[part] for part in parts]).argmax(axis=0)
    return {part: float((places == place).mean()) for place, part in enumerate(parts)}


def _find_hidden_ms(
    part: Part, exposed_ms: float, batches: int, work_s: Mapping[Part, float] | None
) -> float | None:
    """Milliseconds per batch of a part's work that don't make the epoch longer; None: not known.

    exposed_ms: milliseconds per batch by which the part makes the epoch longer.
    """
    # The loop's own thread steps, copies and starts the loader, so nothing of that is hidden.
    if work_s is None or part in (Part.STEP, Part.COPY, Part.START_UP):
        return 0.0
    if part not in work_s:
        return None
    return max(0.0, 1e3 * work_s[part] / batches - max(0.0, exposed_ms))
