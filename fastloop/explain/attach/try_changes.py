"""Try changes of a script's DataLoader, and recommend the change that saves most time.

The first run of the script shows how long a run takes. In the rounds that follow, the beginning of
the script runs once as it is, and once with each change that is chosen for the round. Last, the
samples and losses with the best change are compared with those without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import deadline_after
from fastloop.core.types import SignalExit, Unsupported
from fastloop.explain.attach.changes_to_try import MOST_CHANGES, choose_changes, find_what_if
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.loss_comparison import LossComparison, compare_losses
from fastloop.explain.attach.run_length import (
    COMPARISON_RUNS,
    LEAST_S,
    Budget,
    FirstRun,
    choose_more_batches,
    least_minutes_for_one,
    minutes_to_ask_for,
)
from fastloop.explain.attach.script_patch import patch_call
from fastloop.explain.attach.script_runner import AS_IS, HashedRun, ScriptRunner
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.attach.try_rounds import (
    Attempt,
    Attempts,
    EndOfRounds,
    RunLimits,
    run_rounds,
)
from fastloop.explain.change import Change

MOST_TIMES, LEAST_LIMIT_S = 4, 30.0
"""A run is killed when it has taken MOST_TIMES times the usual time of a run, and LEAST_LIMIT_S
seconds. Such a run has a slow change, or processes that wait for each other forever."""
INTERRUPTED = "the command was interrupted"
"""The reason that is given if a signal has prevented the comparison of samples and losses."""


def try_changes(
    runner: ScriptRunner,
    found: LoopFindings,
    changes: Sequence[Change],
    budget: Budget,
    report: Callable[[str], None],
) -> TriedLoop:
    """Run rounds until the budget is spent, and judge the changes.

    found: findings about the loop, from a run without a change. report: called with a line of
    progress. A signal ends the rounds; the changes are then judged by the rounds so far. Raises
    Unsupported if there is no change, if the script can't be run again, or if the budget has no
    time for a round. Raises SignalExit if a signal arrives before any change can be judged.
    """
    if not changes:
        raise Unsupported(f"no change fits the DataLoader of the loop at {found.facts['place']}")
    started_ns = now_ns()
    # The first run records the samples for the later comparison, and shows how long a run takes.
    hashed = runner.run_hashed(AS_IS, budget.seconds)
    first = _time_first_run(runner, found, hashed, seconds_between(started_ns, now_ns()))
    batches = choose_more_batches(found, first, budget)
    if batches > first.batches:
        runner.lengthen(batches)
        report(_describe_length(first.batches, batches, hashed))
        changes = _add_of_later_passes(changes, found, first.batches, batches)
    run_s = first.expect_s(batches)
    limits = RunLimits(
        budget=budget,
        deadline=deadline_after(budget.seconds, started_ns),
        longest_s=max(MOST_TIMES * run_s, LEAST_LIMIT_S),
    )
    attempts = Attempts(
        baseline=Attempt(change=AS_IS, run_s=run_s),
        changed=[Attempt(change=each, run_s=run_s) for each in changes],
    )
    end = run_rounds(runner, attempts, limits, report)
    if not attempts.baseline.seconds:
        raise Unsupported(_describe_no_round(attempts, batches, run_s, budget))
    tried = _describe_rounds(found, attempts, end, batches, budget)
    best = attempts.best()
    if best is None:
        return tried
    if end.is_interrupted:
        comparison = _without_comparison(INTERRUPTED)
    else:
        run_s = attempts.baseline.run_s
        comparison = _compare_runs(runner, hashed, best.change, limits, run_s)
    return _recommend(tried, runner, found, best.change, comparison)


def _time_first_run(
    runner: ScriptRunner, found: LoopFindings, hashed: HashedRun, seconds: float
) -> FirstRun:
    """The times of the first run. seconds: time of the run, from its start to its end."""
    later_s = hashed.seconds - hashed.once_s
    # While a batch is hashed, workers make further batches, so that the next waits are shorter. A
    # further run has no hashing, so the time of hashing is added.
    if found.facts["num_workers"]:
        later_s += hashed.hash_s
    return FirstRun(batches=runner.cut.batches, seconds=seconds, later_s=later_s)


def _describe_length(before: int, batches: int, first: HashedRun) -> str:
    """The line of progress that says why further runs have more batches than the first one.

    before, batches: number of batches in the first run, and in further runs.
    """
    # A long run may be mostly its first batch, for example if the first step loads libraries.
    short = "too short to tell" if first.seconds < LEAST_S else "mostly its first batch"
    return f"a run up to batch {before} is {short}: further ones end at {batches}"


def _add_of_later_passes(
    changes: Sequence[Change], found: LoopFindings, before: int, batches: int
) -> Sequence[Change]:
    """At most MOST_CHANGES changes: first those that only longer runs can try, then `changes`.

    before, batches: number of batches in the first run, and in further runs.
    """
    known = choose_changes(found, before)
    added = [each for each in choose_changes(found, batches) if each not in known]
    return [*added, *changes][:MOST_CHANGES]


def _describe_no_round(attempts: Attempts, batches: int, run_s: float, budget: Budget) -> str:
    """The message of the error if the budget had no time for a round.

    batches: number of batches in each run. run_s: expected seconds of a run.
    """
    least = least_minutes_for_one(attempts.longest_run_s)
    enough = minutes_to_ask_for(budget.minutes, least)
    return (
        f"--minutes={budget.minutes:g}: a run up to batch {batches} takes {run_s:.0f} s; allowed: "
        f"{enough:.1f} or more"
    )


def _describe_rounds(
    found: LoopFindings, attempts: Attempts, end: EndOfRounds, batches: int, budget: Budget
) -> TriedLoop:
    """The changes with their gains, without a recommendation.

    batches: number of batches in each run.
    """
    return TriedLoop(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        batches=batches,
        seconds=stats.median([*attempts.baseline.seconds.values()]),
        changes=_describe_changes(found, attempts),
        minutes=budget.minutes,
        least_minutes=least_minutes_for_one(attempts.longest_run_s),
        is_out_of_time=end.is_out_of_time,
        is_interrupted=end.is_interrupted,
        best=None,
        machine_load=end.machine_load,
    )


def _describe_changes(found: LoopFindings, attempts: Attempts) -> tuple[TriedChange, ...]:
    """The changes with their gains, the one that saves most first.

    Changes without a gain, which have failed or were not run, come last.
    """
    tried = []
    for each in attempts.changed:
        what_if = find_what_if(found, each.change)
        tried.append(
            TriedChange(
                change=each.change.name,
                predicted=what_if.gain if what_if else None,
                is_least=what_if is not None and what_if.is_least,
                gain=attempts.gain(each),
                rounds=len(each.seconds),
                failure=each.failure,
            )
        )
    return tuple(sorted(tried, key=lambda each: -each.gain.value if each.gain else 1e9))


@dataclass(frozen=True, kw_only=True)
class _RunComparison:
    """The samples and losses of the first pass with a change, beside those without it."""

    same_samples: bool | None = None
    """True if the samples are the same; None if that is not known."""
    not_compared: str = ""
    """The reason why `same_samples` is None; empty if the samples were compared."""
    losses: LossComparison = field(default_factory=LossComparison)


def _compare_runs(
    runner: ScriptRunner, first: HashedRun, change: Change, limits: RunLimits, run_s: float
) -> _RunComparison:
    """Compare the samples and losses of a run with the change to those of runs without it.

    The runs without the change are the first run and a repetition of it. run_s: seconds of a run
    without the change; nothing is compared if no time is left for COMPARISON_RUNS such runs.
    """
    if not limits.deadline.has_room(COMPARISON_RUNS * run_s):
        return _without_comparison("the time was used up")
    try:
        again, changed = (runner.rerun_hashed(each, limits.next_run_s) for each in (AS_IS, change))
    except Unsupported as error:
        return _without_comparison(str(error))
    except SignalExit:
        # The rounds have ended, so the best change is recommended without a comparison.
        return _without_comparison(INTERRUPTED)
    same, reason = _compare_samples(first.digests, again.digests, changed.digests)
    losses = compare_losses(first.losses, again.losses, changed.losses)
    return _RunComparison(same_samples=same, not_compared=reason, losses=losses)


def _without_comparison(reason: str) -> _RunComparison:
    """Neither samples nor losses were compared, for that reason."""
    return _RunComparison(not_compared=reason, losses=LossComparison(not_compared=reason))


def _compare_samples(
    first: list[int], again: list[int], changed: list[int]
) -> tuple[bool | None, str]:
    """Compare the samples of a run with a change to those of two runs without it.

    first, again, changed: hashes of the samples; empty if they can't be hashed. Returns (True if
    the samples are equal or None if that is not known, the reason for None).
    """
    if not first:
        return None, "its batches have nothing that can be compared"
    # A script that shuffles or crops without a fixed seed has other samples in each run.
    if again != first:
        return None, "the script draws other samples in each run"
    return changed == first, ""


def _recommend(
    tried: TriedLoop,
    runner: ScriptRunner,
    found: LoopFindings,
    change: Change,
    comparison: _RunComparison,
) -> TriedLoop:
    """`tried` with a recommendation of the change: its comparison, its patch, and notes on it."""
    call = patch_call(found.facts, change)
    return replace(
        tried,
        best=change.name,
        same_samples=comparison.same_samples,
        not_compared=comparison.not_compared,
        losses=comparison.losses,
        patch=call.patch,
        notes=(*runner.notes.get(change.name, ()), *call.notes),
        advice=call.advice,
    )
