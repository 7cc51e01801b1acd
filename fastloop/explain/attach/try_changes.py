"""Tries changes of a script's DataLoader. The beginning of the script runs again and again, once
without a change and once with each change in every round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastloop.core import stats
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline, deadline_after
from fastloop.core.types import Unsupported
from fastloop.explain.attach.changes_to_try import COMPARISON_RUNS, find_prediction, least_minutes
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.script_patch import PatchedCall, patch_call
from fastloop.explain.attach.script_runner import AS_IS, ScriptRunner
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.attach.try_rounds import Attempt, Attempts, run_rounds
from fastloop.explain.change import Change

MOST_TIMES, LEAST_LIMIT_S = 4, 30.0
"""A run is killed when it has taken MOST_TIMES as long as the first run, but not before
LEAST_LIMIT_S: either its change is slow, or its processes wait for each other forever."""


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
    deadline = deadline_after(budget_s, started_ns)
    # This first run gives the samples to compare with, and shows how long a run takes.
    digests = runner.digests(AS_IS, budget_s)
    run_s = seconds_between(started_ns, now_ns())
    limit_s = max(MOST_TIMES * run_s, LEAST_LIMIT_S)
    baseline = Attempt(change=AS_IS, run_s=run_s)
    changed = [Attempt(change=each, run_s=run_s) for each in changes]
    attempts = Attempts(baseline=baseline, changed=changed)

    def end_round(number: int) -> None:
        spent_s = seconds_between(started_ns, now_ns())
        report(f"round {number}: {spent_s:.0f} of at most {budget_s:.0f} s")

    run_rounds(runner, attempts, deadline, limit_s, end_round)
    if not baseline.seconds:
        raise Unsupported(
            f"--minutes={budget_s / 60:g}: a run up to batch {runner.cut.batches} takes "
            f"{run_s:.0f} s; allowed: {least_minutes(run_s):.1f} or more"
        )
    best, call, same, reason = attempts.best(), PatchedCall(), None, ""
    if best:
        call = patch_call(found.facts, best.change)
        same, reason = None, "the time was over"
        if deadline.has_room(COMPARISON_RUNS * baseline.run_s):
            same, reason = _compare_samples(runner, best.change, digests, deadline, limit_s)
    return TriedLoop(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        batches=runner.cut.batches,
        seconds=stats.median([*baseline.seconds.values()]),
        changes=_describe_changes(found, attempts),
        least_minutes=least_minutes(max(each.run_s for each in (baseline, *changed))),
        best=best.change.name if best else None,
        same_samples=same,
        not_compared=reason,
        patch=call.patch,
        notes=(*runner.notes.get(best.change.name, ()), *call.notes) if best else (),
        advice=call.advice,
    )


def _describe_changes(found: LoopFindings, attempts: Attempts) -> tuple[TriedChange, ...]:
    """The changes, the one that saves most first; those without a gain, which have failed or were
    not run, come last."""
    tried = [
        TriedChange(
            change=each.change.name,
            predicted=find_prediction(found, each.change),
            gain=attempts.gain(each),
            rounds=len(each.seconds),
            failure=each.failure,
        )
        for each in attempts.changed
    ]
    return tuple(sorted(tried, key=lambda each: -each.gain.value if each.gain else 1e9))


def _compare_samples(
    runner: ScriptRunner,
    change: Change,
    digests: list[int],
    deadline: Deadline,
    limit_s: float,
) -> tuple[bool | None, str]:
    """Whether the samples have the given digests; or None, and the reason why it is not known.

    limit_s: the most time of a run, which ends at the deadline.
    """
    try:
        again, changed = (
            runner.digests(each, min(limit_s, max(0.0, deadline.remaining_s)))
            for each in (AS_IS, change)
        )
    except Unsupported as error:
        return None, str(error)
    if not digests:
        return None, "its batches have nothing that can be compared"
    # The script shuffles or crops without a fixed seed.
    if again != digests:
        return None, "the script draws other samples in each run"
    return changed == digests, ""
