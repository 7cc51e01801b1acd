"""Tries changes of a script's DataLoader. The beginning of the script runs again and again, once
without a change and once with each change in every round."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Unsupported
from fastloop.explain.attach.call_patch import patch_call
from fastloop.explain.attach.changes_to_try import (
    COMPARED,
    FEWEST_ROUNDS,
    KEPT,
    MARGIN,
    find_prediction,
    least_minutes,
)
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.script_runner import AS_IS, ScriptRunner
from fastloop.explain.change import LEAST_GAIN, Change

MOST_ROUNDS = 10
"""Most rounds, even if the budget has time for more."""
MOST_RATIO = 1.5
"""A change with which the loop has taken more than this many times as long is not run again, so
that the others get its time. On a quiet machine a change that saves time does not take so long; on
a busy one a burst of other work may drop it, which the table shows by its single round."""
MOST_TIMES, LEAST_LIMIT_S = 4, 30.0
"""A run is killed when it has taken MOST_TIMES as long as the first run, but not before
LEAST_LIMIT_S: either its change is slow, or its processes wait for each other forever."""
TRIED, PATCH = "attach_try.json", "attach.patch"


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """The gain of a change that was tried."""

    change: str
    """The name of the change."""
    predicted: float | None
    """Share of the loop's time that the model predicted it to save; None: nothing was predicted."""
    gain: stats.Estimate | None
    """Share of the loop's time that it saves; None: its runs failed."""
    rounds: int
    failure: str = ""
    """The last line of the run that failed."""


@dataclass(frozen=True, kw_only=True)
class TriedLoop:
    """The changes of a loop's DataLoader that were tried, the one that saves most first."""

    place: str
    made_at: str
    batches: int
    """Number of batches of the loop in each run."""
    seconds: float
    """Time of the loop in a run without a change, the median."""
    changes: tuple[TriedChange, ...]
    least_minutes: float
    """Minutes that suffice to try one change, by the longest run so far."""
    best: str | None
    """The recommended change; None: none saves anything for certain."""
    same_samples: bool | None = None
    """True: with the recommended change the first pass has the samples that it has without. None:
    this can't be told, or no change is recommended."""
    not_compared: str = ""
    """The reason why it can't be told whether the samples are the same."""
    patch: str = ""
    """The recommended change for `git apply`; empty if there is none."""
    notes: tuple[str, ...] = ()
    """Sentences on arguments of DataLoader that have no effect with the recommended change, and on
    values that the patch replaces."""
    advice: str = ""
    """A sentence on the call to change by hand; empty if there is a patch, or nothing to change."""


@dataclass(kw_only=True)
class Attempt:
    """A change with its runs so far."""

    change: Change
    run_s: float
    """Seconds of the last run, from its start to its end."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds of the loop by the number of the round."""
    failure: str = ""


def to_json(tried: TriedLoop) -> str:
    """The text of attach_try.json."""
    return json.dumps({"schema": 1, **asdict(tried)}, indent=1) + "\n"


def try_changes(
    runner: ScriptRunner,
    found: LoopFindings,
    changes: Sequence[Change],
    budget_s: float,
    report: Callable[[str], None],
) -> TriedLoop:
    """Run rounds until the budget is spent, and judge the changes.

    report: called with a line of progress. Raises Unsupported if there is no change, if the script
    can't be run again, or if the budget does not suffice for rounds of a single change.
    """
    if not changes:
        raise Unsupported(f"no change fits the DataLoader of the loop at {found.facts['place']}")
    started_ns = now_ns()
    # This first run gives the samples to compare with, and tells how long a run takes.
    digests = runner.digests(AS_IS, budget_s)
    run_s = seconds_between(started_ns, now_ns())
    baseline = Attempt(change=AS_IS, run_s=run_s)
    attempts = [Attempt(change=each, run_s=run_s) for each in changes]
    limit_s = max(MOST_TIMES * run_s, LEAST_LIMIT_S)

    def rest_s() -> float:
        return budget_s - seconds_between(started_ns, now_ns())

    def end_round(number: int) -> None:
        report(f"round {number}: {budget_s - rest_s():.0f} of at most {budget_s:.0f} s")

    _run_rounds(runner, baseline, attempts, limit_s=limit_s, rest_s=rest_s, end_round=end_round)
    if not baseline.seconds:
        raise Unsupported(
            f"--minutes={budget_s / 60:g}: a run up to batch {runner.cut.batches} takes "
            f"{run_s:.0f} s; allowed: {least_minutes(run_s):.1f} or more"
        )
    can_compare = rest_s() >= COMPARED * baseline.run_s
    tried, change = _judge(runner, found, baseline, attempts)
    if change is None:
        return tried
    call = patch_call(found.facts, change)
    same, reason = None, "the time was over"
    if can_compare:
        same, reason = _compare_samples(
            runner, change, digests, lambda: min(limit_s, max(0.0, rest_s()))
        )
    notes = (*runner.notes.get(change.name, ()), *call.notes)
    return replace(
        tried,
        patch=call.patch,
        advice=call.advice,
        same_samples=same,
        not_compared=reason,
        notes=notes,
    )


def _run_rounds(
    runner: ScriptRunner,
    baseline: Attempt,
    attempts: Sequence[Attempt],
    *,
    limit_s: float,
    rest_s: Callable[[], float],
    end_round: Callable[[int], None],
) -> None:
    """Run rounds until the budget is spent, each in a random order.

    rest_s: the rest of the budget. end_round: called with the number of each round. Raises
    Unsupported if the script fails without a change.
    """
    drawn = random.Random(0)
    for number in range(1, MOST_ROUNDS + 1):
        chosen = _choose_round(attempts, baseline, number, rest_s())
        if not chosen:
            return
        order = [baseline, *chosen]
        drawn.shuffle(order)
        for each in order:
            _run_once(runner, each, number, limit_s, rest_s)
            if baseline.failure:
                raise Unsupported(baseline.failure)
        end_round(number)


def _choose_round(
    attempts: Sequence[Attempt], baseline: Attempt, number: int, left_s: float
) -> list[Attempt]:
    """The changes to run in this round, the fastest so far first.

    There are as many as leave time to run the best one in FEWEST_ROUNDS rounds altogether; the list
    is empty if there is no time for a single one.
    """
    alive = _fastest(attempts, baseline)
    waiting = [each for each in attempts if not each.seconds and not each.failure]
    # If there was little time, some changes have not run. The next one takes the place of those
    # that save nothing, if it can run in all rounds that it needs.
    is_free = number > 1 and not any(_saves(each, baseline) for each in alive)
    if waiting and is_free and FEWEST_ROUNDS * _round_s(baseline, waiting[:1]) <= left_s:
        return waiting[:1]
    later = max(0, FEWEST_ROUNDS - 1 - len(alive[0].seconds)) if alive else 0
    most = KEPT[min(number, len(KEPT)) - 1]
    # The comparison of the samples is left out if the rounds would not fit beside it.
    for reserved_s in (COMPARED * baseline.run_s, 0.0):
        for count in range(min(len(alive), most), 0, -1):
            needed_s = _round_s(baseline, alive[:count])
            needed_s += later * _round_s(baseline, alive[:1])
            # Only the first run is timed yet. If the others are slower, a further change in this
            # round must not cost the best one its last round.
            if number == 1 and count > 1:
                needed_s *= MARGIN
            if needed_s + reserved_s <= left_s:
                return alive[:count]
        # Enough rounds have been run for an interval. If a change is sure to help, a further one is
        # not worth the comparison of its samples.
        if number > FEWEST_ROUNDS and any(_is_worth_it(_gain(each, baseline)) for each in alive):
            break
    return []


def _round_s(baseline: Attempt, changes: Sequence[Attempt]) -> float:
    return baseline.run_s + sum(each.run_s for each in changes)


def _run_once(
    runner: ScriptRunner,
    attempt: Attempt,
    number: int,
    limit_s: float,
    rest_s: Callable[[], float],
) -> None:
    """Run the script with the change; a run for which the budget does not suffice is ended."""
    start_ns, budget_s = now_ns(), rest_s()
    if budget_s <= 0:
        return
    try:
        attempt.seconds[number] = runner.seconds(attempt.change, min(limit_s, budget_s))
    except Unsupported as error:
        # If the budget is spent, the run was killed for that reason, which is no fault of its
        # change.
        if rest_s() > 0:
            attempt.failure = str(error)
    attempt.run_s = seconds_between(start_ns, now_ns())


def _fastest(attempts: Sequence[Attempt], baseline: Attempt) -> list[Attempt]:
    """The changes that still run, the one that has saved most in the rounds so far first.

    Those that have failed, or that lose much, do not run any more.
    """

    def ratio(attempt: Attempt) -> float:
        # The end of the budget may have cut off the run of a round without a change.
        shared = [number for number in attempt.seconds if number in baseline.seconds]
        ratios = [attempt.seconds[number] / baseline.seconds[number] for number in shared]
        return stats.median(ratios or [0.0])

    # A change that was left out of the last round does not come back.
    last = max((number for each in attempts for number in each.seconds), default=None)
    going_on = [each for each in attempts if last is None or last in each.seconds]
    alive = [each for each in going_on if not each.failure and ratio(each) <= MOST_RATIO]
    return sorted(alive, key=ratio)


def _judge(
    runner: ScriptRunner, found: LoopFindings, baseline: Attempt, attempts: Sequence[Attempt]
) -> tuple[TriedLoop, Change | None]:
    """The judgement on the changes, and the recommended one; None if none saves time for sure."""
    tried = [
        TriedChange(
            change=each.change.name,
            predicted=find_prediction(found, each.change),
            gain=_gain(each, baseline),
            rounds=len(each.seconds),
            failure=each.failure,
        )
        for each in attempts
    ]
    # Changes without a gain, which have failed or were not run, come last.
    tried.sort(key=lambda each: -each.gain.value if each.gain else 1e9)
    best = next((each for each in tried if _is_worth_it(each.gain)), None)
    judged = TriedLoop(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        batches=runner.cut.batches,
        seconds=stats.median([*baseline.seconds.values()]),
        changes=tuple(tried),
        least_minutes=least_minutes(max(each.run_s for each in (baseline, *attempts))),
        best=best.change if best else None,
    )
    by_name = {each.change.name: each.change for each in attempts}
    return judged, by_name[best.change] if best else None


def _saves(attempt: Attempt, baseline: Attempt) -> bool:
    gain = _gain(attempt, baseline)
    return gain is not None and gain.value >= LEAST_GAIN


def _is_worth_it(gain: stats.Estimate | None) -> bool:
    return gain is not None and gain.is_interval and gain.low > 0 and gain.value >= LEAST_GAIN


def _gain(attempt: Attempt, baseline: Attempt) -> stats.Estimate | None:
    """The share of the loop's time that the change saves, over the rounds that both have."""
    rounds = [number for number in attempt.seconds if number in baseline.seconds]
    new = [attempt.seconds[number] for number in rounds]
    base = [baseline.seconds[number] for number in rounds]
    ratio = stats.ratio_or_range(new, base)
    if ratio is None or attempt.failure:
        return None
    return stats.Estimate(
        value=1 - ratio.estimate,
        low=1 - ratio.high,
        high=1 - ratio.low,
        is_interval=ratio.is_interval,
    )


def _compare_samples(
    runner: ScriptRunner, change: Change, digests: list[int], limit_s: Callable[[], float]
) -> tuple[bool | None, str]:
    """Whether the samples have the given digests; or None, and the reason why it can't be told.

    limit_s: the most time of a run, asked for as it begins.
    """
    try:
        again = runner.digests(AS_IS, limit_s())
        changed = runner.digests(change, limit_s())
    except Unsupported as error:
        return None, str(error)
    if not digests:
        return None, "its batches have nothing that can be compared"
    # The script shuffles or crops without a fixed seed.
    if again != digests:
        return None, "the script draws other samples in each run"
    return changed == digests, ""
