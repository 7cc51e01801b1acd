"""Choose the number of batches in each run of a script by the budget, the time for all its runs.

`fastloop attach --try` runs the beginning of a script several times, as it is and with changes of
its DataLoader. A run ends after a number of batches of the loop. A round is a run of the unchanged
script, and a run with each of a few changes. A pass is one iteration over the DataLoader. `Budget`
has the rule for the length of a run; the last functions compute the minutes that messages name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastloop.core.number_text import show_time
from fastloop.core.types import UsageError
from fastloop.explain.attach.findings import LoopFindings

USUAL_S, LEAST_S = 5.0, 3.0
"""Usual and minimum seconds of the loop in one run, from which the number of batches follows. In a
shorter run the start of workers weighs more than in the whole script."""
FEWEST_BATCHES, MOST_BATCHES = 5, 10_000
"""Bounds of the number of batches in a run."""
FEWEST_PASSES, MOST_FACTOR = 2, 3
"""Number of passes that a run should contain, as workers start and end in each pass, and maximum
of their time as a multiple of USUAL_S."""
MOST_OF_ROUND = (5, 3, 2)
"""Maximum number of changes in each of the first rounds. The last number also holds for all later
rounds."""
FEWEST_ROUNDS = 3
"""Number of rounds after which the gain of a change has an interval."""
COMPARISON_RUNS = 2
"""Number of runs that compare the samples: one without a change, and one with it."""
FEWEST_RUNS = 1 + 2 * FEWEST_ROUNDS
"""Number of runs that one change needs: the first run, and two in each of FEWEST_ROUNDS."""
SLOWDOWN = 1.5
"""Later runs may take this many times as long as the first run, as on a busy machine."""
PLANNED_RUNS = 1 + sum(1 + count for count in MOST_OF_ROUND) + COMPARISON_RUNS
"""Number of runs that the budget should contain: the first run, three rounds, and the comparison of
the samples. Each round also runs the unchanged script."""


@dataclass(frozen=True)
class Budget:
    """The time for all runs of a script together.

    The rule: the budget should contain PLANNED_RUNS runs, and each run gets an equal share. A run
    ends when its loop has taken USUAL_S and had FEWEST_PASSES passes, or when the share is used up,
    but not before its loop has taken LEAST_S. If the passes would take too long (MOST_FACTOR), only
    USUAL_S counts.
    """

    seconds: float

    @property
    def minutes(self) -> float:
        """The budget in minutes, as the user gives it."""
        return self.seconds / 60

    def share_of_loop_s(self, outside_s: float) -> float:
        """Seconds of the loop for which a run has time, at least LEAST_S.

        outside_s: seconds of the run outside of the loop.
        """
        return max(self.seconds / PLANNED_RUNS - outside_s, LEAST_S)


@dataclass(frozen=True, kw_only=True)
class FirstRun:
    """The first run of the script, without a change: it shows the speed of further runs."""

    batches: int
    """Number of the loop's batches."""
    seconds: float
    """Time of the run, from its start to its end."""
    later_s: float
    """Time of the loop without its first batch, which takes longer than others."""

    @property
    def outside_s(self) -> float:
        """Seconds of the run that do not belong to `later_s`."""
        return max(0.0, self.seconds - self.later_s)

    def expect_s(self, batches: int) -> float:
        """Expected seconds of a run that ends after this many batches, from its start to its
        end."""
        if batches == self.batches:
            return self.seconds
        return self.outside_s + self.later_s * (batches - 1) / (self.batches - 1)


@dataclass(frozen=True)
class RankLoop:
    """The observed loop in one rank, or in the only process."""

    batches: int
    passes: int
    seconds: float
    """Time of all these batches."""

    @property
    def batches_per_pass(self) -> int:
        """Number of batches in a pass, rounded up."""
        return -(-self.batches // self.passes)


def loop_of_rank(found: LoopFindings) -> RankLoop:
    """The loop of the rank with the fewest batches, because every rank must reach the end of a run.

    The figures in `found` are those of all ranks together.
    """
    ranks = found.ranks.ranks if found.ranks else ()
    if not ranks:
        return RankLoop(found.batches, found.passes, found.seconds)
    least = min(ranks, key=lambda each: each.batches)
    return RankLoop(least.batches, max(1, found.passes // len(ranks)), least.seconds)


def choose_batches(found: LoopFindings, budget: Budget, outside_s: float) -> int:
    """Number of the loop's batches in a run, for each rank, by the speed of the observed run.

    outside_s: approximate time of a run outside of the loop.
    """
    loop = loop_of_rank(found)
    return _fit_batches(loop, loop.seconds / loop.batches, budget.share_of_loop_s(outside_s))


def choose_more_batches(found: LoopFindings, first: FirstRun, budget: Budget) -> int:
    """Number of the loop's batches in each further run, at least as many as in the first run.

    If the first run shows that the loop is faster than in the observed run, further runs get more
    batches: short runs would tell nothing. The observed run may have shared the machine with other
    programs.
    """
    if first.batches < 2 or not 0 < first.later_s < LEAST_S:
        return first.batches
    batch_s = first.later_s / (first.batches - 1)
    share_s = budget.share_of_loop_s(first.outside_s)
    fitting = _fit_batches(loop_of_rank(found), batch_s, share_s)
    # FEWEST_ROUNDS must fit into the rest of the budget even if their runs are slower than the
    # first run.
    left_s = budget.seconds - first.seconds
    most_s = left_s / (SLOWDOWN * (FEWEST_RUNS - 1)) - first.outside_s
    return max(first.batches, min(fitting, 1 + int(most_s / batch_s)))


def _fit_batches(loop: RankLoop, batch_s: float, share_s: float) -> int:
    """Number of batches by the rule of `Budget`, at most as many as the loop has.

    batch_s: seconds of a batch. share_s: seconds of the loop for which a run has time.
    """
    wanted = max(int(USUAL_S / batch_s), FEWEST_BATCHES)
    of_passes = FEWEST_PASSES * loop.batches_per_pass
    if of_passes * batch_s <= MOST_FACTOR * USUAL_S:
        wanted = max(wanted, of_passes)
    affordable = max(int(share_s / batch_s), FEWEST_BATCHES)
    return min(wanted, affordable, loop.batches, MOST_BATCHES)


def check_budget(found: LoopFindings, batches: int, budget: Budget, outside_s: float) -> None:
    """Raise UsageError if the loop's own time in the fewest possible runs exceeds the budget.

    batches: number of the loop's batches in each run. outside_s: approximate time of a run outside
    of the loop.
    """
    loop = loop_of_rank(found)
    run_s = batches * loop.seconds / loop.batches
    # A run ends with the loop, so its time outside of the loop may be shorter than outside_s. This
    # time is not counted here.
    if (least_s := FEWEST_RUNS * run_s) > budget.seconds:
        raise UsageError(
            f"--minutes={budget.minutes:g}: {FEWEST_RUNS} runs up to batch {batches} of the loop "
            f"at {found.facts['place']} take at least {show_time(least_s)}; allowed: "
            f"{least_minutes_for_one(outside_s + run_s):.1f} or more"
        )


def least_minutes_for_one(run_s: float) -> float:
    """Minutes that suffice to try one change, rounded up to a tenth. run_s: seconds of a run."""
    return math.ceil(SLOWDOWN * FEWEST_RUNS * run_s / 6) / 10


def minutes_for_all(least: float) -> float:
    """Minutes that suffice to try all changes, rounded up to a tenth.

    least: minutes that suffice to try one change.
    """
    return math.ceil(10 * least * PLANNED_RUNS / FEWEST_RUNS) / 10


def minutes_to_ask_for(given: float, enough: float) -> float:
    """Minutes that a message asks for, after the given minutes were too few.

    given: minutes that the user gave. enough: minutes that suffice according to the runs so far. If
    these are not more than the given minutes, the result is twice the given minutes.
    """
    return enough if enough > given else 2 * given
