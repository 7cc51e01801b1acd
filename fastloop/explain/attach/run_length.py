"""Choose the number of batches in each run of a script, and compute the minutes for all runs.

`fastloop attach --try` runs the beginning of a script several times, as it is and with changes of
its DataLoader. A run ends after a number of batches of the loop. A round is a run of the unchanged
script, and a run with each of a few changes. The budget is the time for all runs together. A pass
is one iteration over the DataLoader.
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
"""Workers start and end in each pass, so a run should contain FEWEST_PASSES passes. If these passes
take more than MOST_FACTOR times USUAL_S, a run may be shorter."""
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


def choose_batches(found: LoopFindings, budget_s: float, outside_s: float) -> int:
    """Number of the loop's batches in a run, for each rank, by the speed of the observed run.

    budget_s: time for all runs together. outside_s: approximate time of a run outside of the loop.
    """
    loop = loop_of_rank(found)
    return _fit_batches(loop, loop.seconds / loop.batches, budget_s, outside_s)


def choose_more_batches(
    found: LoopFindings,
    batches: int,
    later_s: float,
    budget_s: float,
    outside_s: float,
    left_s: float,
) -> int:
    """Number of the loop's batches in each further run, at least as many as in the first run.

    If the first run shows that the loop is faster than in the observed run, further runs get more
    batches: short runs would tell nothing. The observed run may have shared the machine with other
    programs. batches: number of batches in the first run. later_s: time of the first run's loop
    without its first batch, which takes longer than others. budget_s: time for all runs together.
    outside_s: the rest of the first run. left_s: the part of the budget that is left.
    """
    if batches < 2 or not 0 < later_s < LEAST_S:
        return batches
    batch_s = later_s / (batches - 1)
    fitting = _fit_batches(loop_of_rank(found), batch_s, budget_s, outside_s)
    # FEWEST_ROUNDS must fit into the rest of the budget even if their runs are slower than the
    # first run.
    most_s = left_s / (SLOWDOWN * (FEWEST_RUNS - 1)) - outside_s
    return max(batches, min(fitting, 1 + int(most_s / batch_s)))


def _fit_batches(loop: RankLoop, batch_s: float, budget_s: float, outside_s: float) -> int:
    """Number of batches that take USUAL_S, or FEWEST_PASSES passes, within the budget.

    batch_s: seconds of a batch. budget_s, outside_s: as for `choose_batches`.
    """
    wanted = max(int(USUAL_S / batch_s), FEWEST_BATCHES)
    of_passes = FEWEST_PASSES * loop.batches_per_pass
    if of_passes * batch_s <= MOST_FACTOR * USUAL_S:
        wanted = max(wanted, of_passes)
    affordable_s = max(budget_s / PLANNED_RUNS - outside_s, LEAST_S)
    affordable = max(int(affordable_s / batch_s), FEWEST_BATCHES)
    return min(wanted, affordable, loop.batches, MOST_BATCHES)


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


def check_minutes(found: LoopFindings, batches: int, minutes: float, outside_s: float) -> None:
    """Raise UsageError if even the loop's own time in the fewest possible runs exceeds `minutes`.

    batches: number of the loop's batches in each run. outside_s: approximate time of a run outside
    of the loop.
    """
    loop = loop_of_rank(found)
    run_s = batches * loop.seconds / loop.batches
    # A run ends with the loop, so its time outside of the loop may be shorter than outside_s. This
    # time is not counted here.
    if (least_s := FEWEST_RUNS * run_s) > 60 * minutes:
        raise UsageError(
            f"--minutes={minutes:g}: {FEWEST_RUNS} runs up to batch {batches} of the loop at "
            f"{found.facts['place']} take at least {show_time(least_s)}; allowed: "
            f"{least_minutes_for_one(outside_s + run_s):.1f} or more"
        )
