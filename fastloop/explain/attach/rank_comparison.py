"""Compare the ranks of a script's loop, and find the rank that holds up the others.

A rank is one of the processes that train together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastloop.core.explanation import Verdict
from fastloop.core.number_text import show_percent, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loop_verdict import judge_loop
from fastloop.explain.attach.loops import OF_STEPS, PARTS, Loop, share_of_parts, wait_share

LEAST_DIFFERENCE = 0.05
"""Ranks are alike if their times differ by this share of the mean time of a rank, or less."""
WAIT_PLACES = [place for place, part in enumerate(PARTS) if part not in OF_STEPS]
"""Places in PARTS of the parts in which the loop waits for data."""


@dataclass(frozen=True, kw_only=True)
class RankFindings:
    """Findings about the loop of one rank."""

    rank: int
    batches: int
    """Number of batches that the loop got."""
    seconds: float
    """Time of the loop."""
    verdict: Verdict
    shares: dict[Part, Estimate]
    """Each part's share of the loop's time."""

    @property
    def wait(self) -> Estimate:
        """The share of the loop's time outside of steps."""
        return wait_share(self.shares)


@dataclass(frozen=True, kw_only=True)
class RankComparison:
    """The ranks of a loop, side by side."""

    ranks: tuple[RankFindings, ...]
    slowest: int | None
    """The rank that takes longest. If all ranks take equally long, the rank that waits longest for
    data, because the others wait for it in their steps. None if the ranks are alike."""
    sentence: str
    """The answer in words."""


def compare_ranks(loop: Loop) -> RankComparison | None:
    """The comparison of the ranks on this machine; None for a single process."""
    if not loop.ranks:
        return None
    # The comparison is of seconds. With equal waits, a slower rank has smaller shares of waiting.
    found = tuple(_describe_rank(each) for each in loop.ranks)
    spent = np.array([[each.seconds * each.shares[part].value for part in PARTS] for each in found])
    seconds = spent.sum(1)
    waits = spent[:, WAIT_PLACES].sum(1)
    least = LEAST_DIFFERENCE * seconds.mean()
    if np.ptp(seconds) > least:
        slowest = int(seconds.argmax())
        sentence = _sentence_on_pace(found[slowest].rank, slowest, spent)
    # Ranks that synchronize in every step take equally long. While the slowest rank waits for data,
    # the other ranks wait for it in their steps.
    elif np.ptp(waits) > least:
        slowest = int(waits.argmax())
        sentence = _sentence_on_waits(found[slowest].rank, slowest, spent)
    else:
        sentence = f"The {len(found)} ranks take equally long and wait equally long for data"
        return RankComparison(ranks=found, slowest=None, sentence=sentence)
    return RankComparison(ranks=found, slowest=found[slowest].rank, sentence=sentence)


def rank_rows(comparison: RankComparison) -> list[tuple[str, ...]]:
    """The rows of a table of the ranks, as text; the first row is the heading."""
    rows = [("rank", "verdict", "seconds", "waits for data")]
    for each in comparison.ranks:
        waits = show_percent(each.wait.value)
        rows.append((str(each.rank), str(each.verdict.word), significant(each.seconds), waits))
    return rows


def _describe_rank(loop: Loop) -> RankFindings:
    """The findings about the loop of one rank."""
    assert loop.rank is not None
    shares = share_of_parts(loop)
    return RankFindings(
        rank=loop.rank,
        batches=loop.batches,
        seconds=loop.seconds,
        verdict=judge_loop(loop, shares),
        shares=shares,
    )


def _sentence_on_pace(rank: int, place: int, spent: np.ndarray) -> str:
    """The sentence on the rank that takes longest.

    place: the rank's row in `spent`. spent: (ranks, PARTS) seconds.
    """
    others = np.delete(spent, place, 0).mean(0)
    took = significant(spent[place].sum())
    usual = significant(others.sum())
    part, excess_s = _greatest_excess(spent[place] - others, range(len(PARTS)))
    return (
        f"Rank {rank} is the slowest: its loop takes {took} s, the others' {usual} s on average; "
        f"{significant(excess_s)} s of the difference is {part}"
    )


def _sentence_on_waits(rank: int, place: int, spent: np.ndarray) -> str:
    """The sentence on the rank that waits longest for data.

    place: the rank's row in `spent`. spent: (ranks, PARTS) seconds.
    """
    others = np.delete(spent, place, 0).mean(0)
    waits = significant(spent[place, WAIT_PLACES].sum())
    usual = significant(others[WAIT_PLACES].sum())
    part, excess_s = _greatest_excess(spent[place] - others, WAIT_PLACES)
    return (
        f"All ranks take equally long, but rank {rank} slows down the others: it waits {waits} s "
        f"for data, the others {usual} s on average, and in their steps they wait for rank {rank}; "
        f"{significant(excess_s)} s of the difference is {part}"
    )


def _greatest_excess(excess_s: np.ndarray, places: range | list[int]) -> tuple[Part, float]:
    """The part that takes longer by most than in the other ranks, and the difference in seconds.

    excess_s: (PARTS,) differences in seconds. places: the places in PARTS to choose from.
    """
    place = max(places, key=lambda each: excess_s[each])
    return PARTS[place], float(excess_s[place])
