"""The verdict on a ladder: one word for the job, and the sentences that say why."""

from __future__ import annotations

from fastloop.core.explanation import Ladder, Rung, Verdict
from fastloop.explain.sentences import (
    describe_disagreement,
    describe_misfit,
    describe_start_up,
    describe_step,
    describe_unsure,
    describe_wait,
    describe_waits,
    leading_row,
    name_parts,
)

WORTH = 0.10
"""Share of an epoch from which a loader is worth touching."""
MOST_UNSURE = 0.25
"""Upper end of the interval of that share up to which a loader is said not to be worth it."""
MOST_UNATTRIBUTED = 0.05
"""Share of an epoch by which the parts may miss the whole."""
WIDE = 0.05
"""Length of the interval of a part, as a share of the epoch, from which rounds are added."""
SURE = 0.80
"""Least certainty that a part is the greatest, from which it is named; wrong names are rarer than
the rest, as a part that is not the greatest is seldom far from it."""


def judge(ladder: Ladder, name: str, first_batch_s: float, decoding: str = "") -> Verdict:
    """The verdict on a job.

    name: of its benchmark. first_batch_s: from opening the loader to its first batch. decoding:
    words for what makes a sample; empty where nothing is known of it.
    """
    phrases = name_parts(decoding)
    if not _is_sure(ladder):
        unsure = describe_unsure(ladder, name, phrases)
        return Verdict(word=Rung.UNATTRIBUTED, sentences=tuple(unsure))
    if ladder.wait_share.value < WORTH:
        word, sentences = Rung.STEP, [describe_step(ladder, name)]
    else:
        word, reason = _find_cause(ladder, phrases)
        sentences = [describe_waits(ladder, name), reason]
    return Verdict(word=word, sentences=(*sentences, describe_start_up(ladder, first_batch_s)))


def needs_more_rounds(ladder: Ladder) -> bool:
    """True where further rounds may tell what these don't: whether the loader is worth touching, or
    which of its parts is the greatest."""
    wait = ladder.wait_share
    if not _is_sure(ladder) or wait.low < WORTH < wait.high:
        return True
    return wait.value >= WORTH and leading_row(ladder).sure_greatest < SURE


def tells_too_little(ladder: Ladder) -> bool:
    """True where further rounds may tell the verdict, or what a part costs within some points of
    the epoch: the gain of removing a part depends on its size also where the verdict is sure."""
    is_wide = any(row.share.high - row.share.low > WIDE for row in ladder.rows)
    return is_wide or needs_more_rounds(ladder)


def _is_sure(ladder: Ladder) -> bool:
    """True where the rounds tell whether the loader is worth touching."""
    wait = ladder.wait_share
    return wait.low > 0 if wait.value >= WORTH else wait.high <= MOST_UNSURE


def _find_cause(ladder: Ladder, phrases: dict[Rung, str]) -> tuple[Rung, str]:
    """The part that is the cause of the wait, and the sentence that says so or why none is."""
    if ladder.residue > MOST_UNATTRIBUTED:
        return Rung.UNATTRIBUTED, describe_misfit(ladder)
    if ladder.slower_steps and ladder.slower_steps.low > ladder.wait_share.value / 2:
        return Rung.UNATTRIBUTED, describe_disagreement(ladder)
    leading = leading_row(ladder)
    is_known = leading.sure_greatest >= SURE
    reason = describe_wait(ladder, phrases, is_known)
    return (leading.rung if is_known else Rung.UNATTRIBUTED), reason
