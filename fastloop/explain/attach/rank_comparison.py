"""Compare the ranks of a script's loop, and find the rank that holds the others up."""

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
"""Ranks that differ by less than this share of their mean time are alike."""
WAIT_PLACES = [place for place, part in enumerate(PARTS) if part not in OF_STEPS]
"""Places in PARTS of the parts in which the loop has no batch."""


@dataclass(frozen=True, kw_only=True)
class RankFindings:
    """Findings about the loop of one rank."""

    rank: int
    batches: int
    seconds: float
    verdict: Verdict
    shares: dict[Part, Estimate]
    """Each part's share of the rank's time."""

    @property
    def wait(self) -> Estimate:
        """The share of its time outside of steps."""
        return wait_share(self.shares)


@dataclass(frozen=True, kw_only=True)
class RankComparison:
    """The ranks of a loop, side by side."""

    ranks: tuple[RankFindings, ...]
    slowest: int | None
    """The rank that takes longest; if all take equally long, the one that waits longest for data,
    and makes the others wait in their steps; None if the ranks are alike."""
    sentence: str


def compare_ranks(loop: Loop) -> RankComparison | None:
    """The comparison of the ranks on this machine; None for a single process."""
    if not loop.ranks:
        return None
    # Seconds, and not shares: a rank that takes longer has smaller shares of the same waits.
    found = tuple(_describe_rank(each) for each in loop.ranks)
    spent = np.array([[each.seconds * each.shares[part].value for part in PARTS] for each in found])
    seconds = spent.sum(1)
    waits = spent[:, WAIT_PLACES].sum(1)
    least = LEAST_DIFFERENCE * seconds.mean()
    if np.ptp(seconds) > least:
        slowest = int(seconds.argmax())
        sentence = _sentence_on_pace(found[slowest].rank, slowest, spent)
    # Ranks that synchronize in every step take equally long: the others' steps have the time for
    # which the slowest one waits for data.
    elif np.ptp(waits) > least:
        slowest = int(waits.argmax())
        sentence = _sentence_on_waits(found[slowest].rank, slowest, spent)
    else:
        sentence = f"The {len(found)} ranks take equally long and wait equally long for data"
        return RankComparison(ranks=found, slowest=None, sentence=sentence)
    return RankComparison(ranks=found, slowest=found[slowest].rank, sentence=sentence)


def rank_rows(comparison: RankComparison) -> list[tuple[str, ...]]:
    """The ranks as text, below a heading."""
    rows = [("rank", "verdict", "seconds", "waits for data")]
    for each in comparison.ranks:
        waits = show_percent(each.wait.value)
        rows.append((str(each.rank), str(each.verdict.word), significant(each.seconds), waits))
    return rows


def _describe_rank(loop: Loop) -> RankFindings:
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
    """The sentence on a rank that takes longest. spent: seconds, (ranks, PARTS)."""
    others = np.delete(spent, place, 0).mean(0)
    took = significant(spent[place].sum())
    usual = significant(others.sum())
    part, excess_s = _greatest_excess(spent[place] - others, range(len(PARTS)))
    return (
        f"Rank {rank} is the slowest: its loop takes {took} s, the others' {usual} s on average; "
        f"{significant(excess_s)} s of the difference is {part}"
    )


def _sentence_on_waits(rank: int, place: int, spent: np.ndarray) -> str:
    """The sentence on a rank that waits longest. spent: seconds, (ranks, PARTS)."""
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
    """The part with the greatest excess over the other ranks, and the excess in seconds."""
    place = max(places, key=lambda each: excess_s[each])
    return PARTS[place], float(excess_s[place])
