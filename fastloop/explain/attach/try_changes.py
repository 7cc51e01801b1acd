"""Try changes of a script's DataLoader, and recommend the change that saves most time.

In every round, the beginning of the script runs once as it is, and once with each change that is
chosen for the round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from fastloop.core import stats
from fastloop.core.machine_load import LoadSummary, LoadWatch
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.time_limits import Deadline, deadline_after
from fastloop.core.types import SignalExit, Unsupported
from fastloop.explain.attach.changes_to_try import MOST_CHANGES, choose_changes, find_what_if
from fastloop.explain.attach.findings import LoopFindings
from fastloop.explain.attach.loss_comparison import LossComparison, compare_losses
from fastloop.explain.attach.run_length import (
    COMPARISON_RUNS,
    LEAST_S,
    choose_more_batches,
    least_minutes_for_one,
    minutes_to_ask_for,
)
from fastloop.explain.attach.script_patch import PatchedCall, patch_call
from fastloop.explain.attach.script_runner import AS_IS, HashedRun, ScriptRunner
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.attach.try_rounds import Attempt, Attempts, run_rounds
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
    budget_s: float,
    report: Callable[[str], None],
) -> TriedLoop:
    """Run rounds until the budget is spent, and judge the changes.

    found: findings about the loop, from a run without a change. budget_s: maximum seconds of all
    runs together. report: called with a line of progress. A signal ends the rounds; the changes are
    then judged by the rounds so far. Raises Unsupported if there is no change, if the script can't
    be run again, or if the budget has no time for a round. Raises SignalExit if a signal arrives
    before any change can be judged.
    """
    if not changes:
        raise Unsupported(f"no change fits the DataLoader of the loop at {found.facts['place']}")
    started_ns = now_ns()
    deadline = deadline_after(budget_s, started_ns)
    # The first run records the samples for the later comparison, and shows how long a run takes.
    first = runner.run_hashed(AS_IS, budget_s)
    first_s = seconds_between(started_ns, now_ns())
    before = runner.cut.batches
    run_s = _lengthen_runs(runner, found, first, budget_s, first_s)
    if (batches := runner.cut.batches) > before:
        report(_describe_length(before, batches, first))
        changes = _add_of_later_passes(changes, found, before, batches)
    limit_s = max(MOST_TIMES * run_s, LEAST_LIMIT_S)
    session = _Session(runner, found, first, budget_s, deadline, limit_s)
    attempts = _begin_attempts(changes, run_s)
    end = _run_rounds(session, attempts, report)
    _check_has_round(runner, attempts, run_s, budget_s)
    chosen = _recommend(session, attempts, end.is_interrupted)
    return TriedLoop(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        batches=runner.cut.batches,
        seconds=stats.median([*attempts.baseline.seconds.values()]),
        changes=_describe_changes(found, attempts),
        minutes=budget_s / 60,
        least_minutes=least_minutes_for_one(attempts.longest_run_s),
        is_out_of_time=end.is_out_of_time,
        is_interrupted=end.is_interrupted,
        best=chosen.name,
        same_samples=chosen.same_samples,
        not_compared=chosen.not_compared,
        losses=chosen.losses,
        patch=chosen.call.patch,
        notes=chosen.notes,
        advice=chosen.call.advice,
        machine_load=end.machine_load,
    )


def _begin_attempts(changes: Sequence[Change], run_s: float) -> Attempts:
    """The attempts before the first round: the script as it is, and with each change.

    run_s: expected seconds of a run.
    """
    changed = [Attempt(change=each, run_s=run_s) for each in changes]
    return Attempts(baseline=Attempt(change=AS_IS, run_s=run_s), changed=changed)


def _check_has_round(
    runner: ScriptRunner, attempts: Attempts, run_s: float, budget_s: float
) -> None:
    """Raise Unsupported if no round has run, because the budget had no time for one.

    run_s: expected seconds of a run, for the message.
    """
    if not attempts.baseline.seconds:
        least = least_minutes_for_one(attempts.longest_run_s)
        enough = minutes_to_ask_for(budget_s / 60, least)
        raise Unsupported(
            f"--minutes={budget_s / 60:g}: a run up to batch {runner.cut.batches} takes "
            f"{run_s:.0f} s; allowed: {enough:.1f} or more"
        )


def _lengthen_runs(
    runner: ScriptRunner, found: LoopFindings, first: HashedRun, budget_s: float, first_s: float
) -> float:
    """Set the number of batches in each further run, by the speed of the first run.

    first_s: seconds of the first run, from its start to its end. Returns the expected seconds of a
    further run, from its start to its end.
    """
    batches = runner.cut.batches
    later_s = first.seconds - first.once_s
    # While a batch is hashed, workers make further batches, so that the next waits are shorter. A
    # further run has no hashing, so the time of hashing is added.
    if found.facts["num_workers"]:
        later_s += first.hash_s
    outside_s = max(0.0, first_s - later_s)
    longer = choose_more_batches(found, batches, later_s, budget_s, outside_s, budget_s - first_s)
    if longer == batches:
        return first_s
    runner.lengthen(longer)
    return outside_s + later_s * (longer - 1) / (batches - 1)


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


@dataclass(frozen=True)
class _Session:
    """A loop that is tried: its runner, its findings, its first run, and the limits of time."""

    runner: ScriptRunner
    found: LoopFindings
    first: HashedRun
    """The first run, without a change."""
    budget_s: float
    """Maximum seconds of all runs together."""
    deadline: Deadline
    """The time at which the budget is spent."""
    limit_s: float
    """Maximum seconds of a further run; the run also ends at the deadline."""


@dataclass(frozen=True)
class _EndOfRounds:
    """The reason why there was no further round, and the load of the machine until then.

    If both reasons are False, more time would have added no round.
    """

    is_out_of_time: bool
    """True if the budget had no time for a further round."""
    is_interrupted: bool
    """True if a signal has ended the last round; `is_out_of_time` is then True, too."""
    machine_load: LoadSummary | None
    """The load by other programs during the rounds; None if no time has passed."""


def _run_rounds(
    session: _Session, attempts: Attempts, report: Callable[[str], None]
) -> _EndOfRounds:
    """Run rounds until the deadline or a signal.

    Raises Unsupported if the script fails without a change, and SignalExit if a signal arrives
    before any change can be judged.
    """
    load, deadline, budget_s = LoadWatch(), session.deadline, session.budget_s

    def end_round(number: int) -> None:
        load.end_stretch()
        spent_s = budget_s - deadline.remaining_s
        report(f"round {number}: {spent_s:.0f} of at most {budget_s:.0f} s")

    is_interrupted = False
    try:
        is_out_of_time = run_rounds(session.runner, attempts, deadline, session.limit_s, end_round)
    except SignalExit:
        # Rounds take minutes, so those that have ended are not thrown away.
        if not any(map(attempts.gain, attempts.changed)):
            raise
        # With more time there would have been further rounds.
        is_out_of_time = is_interrupted = True
    return _EndOfRounds(is_out_of_time, is_interrupted, load.summary())


@dataclass(frozen=True, kw_only=True)
class _Recommendation:
    """The recommended change, its patch, and the comparison of its samples and losses."""

    name: str | None = None
    """Name of the change; None if no change is recommended."""
    same_samples: bool | None = None
    """True if the first pass has the same samples with the change; None if that is not known."""
    not_compared: str = ""
    """The reason why `same_samples` is None; empty if the samples were compared."""
    losses: LossComparison = field(default_factory=LossComparison)
    call: PatchedCall = field(default_factory=PatchedCall)
    """A patch of the script's call of DataLoader, or advice if there can be none."""
    notes: tuple[str, ...] = ()
    """Sentences on the change, such as those on arguments that have no effect."""


def _recommend(session: _Session, attempts: Attempts, is_interrupted: bool) -> _Recommendation:
    """The recommendation of the best change; an empty one if there is none.

    is_interrupted: True if a signal has ended the rounds; the script is then not run again.
    """
    best = attempts.best()
    if best is None:
        return _Recommendation()
    if is_interrupted:
        compared = _without_comparison(INTERRUPTED)
    elif not session.deadline.has_room(COMPARISON_RUNS * attempts.baseline.run_s):
        compared = _without_comparison("the time was used up")
    else:
        compared = _compare_runs(session, best.change)
    call = patch_call(session.found.facts, best.change)
    name = best.change.name
    return replace(
        compared,
        name=name,
        call=call,
        notes=(*session.runner.notes.get(name, ()), *call.notes),
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


def _compare_runs(session: _Session, change: Change) -> _Recommendation:
    """Compare the samples and losses of a run with the change to those of runs without it.

    The runs without the change are the first run and a repetition of it.
    """
    first, deadline = session.first, session.deadline
    try:
        again, changed = (
            session.runner.rerun_hashed(each, min(session.limit_s, max(0.0, deadline.remaining_s)))
            for each in (AS_IS, change)
        )
    except Unsupported as error:
        return _without_comparison(str(error))
    except SignalExit:
        # The rounds have ended, so the best change is recommended without a comparison.
        return _without_comparison(INTERRUPTED)
    same, reason = _compare_samples(first.digests, again.digests, changed.digests)
    losses = compare_losses(first.losses, again.losses, changed.losses)
    return _Recommendation(same_samples=same, not_compared=reason, losses=losses)


def _without_comparison(reason: str) -> _Recommendation:
    """A recommendation without a comparison, for that reason."""
    return _Recommendation(not_compared=reason, losses=LossComparison(not_compared=reason))


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
