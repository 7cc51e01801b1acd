"""The verdict on a ladder: a word for the job, and the sentences that give the reason."""

from __future__ import annotations

from fastloop.core.explanation import Ladder, Verdict
from fastloop.core.parts import Part
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
"""A loader is worth improving if a perfect one would save at least this share of an epoch."""
MOST_UNSURE = 0.25
"""The verdict is `step` only if the interval of that share ends at or below this."""
MOST_UNATTRIBUTED = 0.05
"""Share of an epoch by which the parts may miss the whole, beyond noise."""
WIDE = 0.05
"""Rounds are added if the interval of a part is longer than this share of the epoch."""
SURE = 0.80
"""Least certainty that a part is the greatest for it to be named. In simulated campaigns
(experiments/verdicts) at most 5 % of the verdicts were wrong, fewer than the 20 % that are left
here, as a part beside a sure greatest one is seldom far below it."""


def judge(ladder: Ladder, name: str, first_batch_s: float, decoding: str = "") -> Verdict:
    """The verdict on a job.

    name: of its benchmark. first_batch_s: seconds from opening the loader to its first batch.
    decoding: words for making a sample; empty if nothing is known of it.
    """
    phrases = name_parts(decoding)
    if not _is_sure(ladder):
        unsure = describe_unsure(ladder, name, phrases)
        return Verdict(word=Part.UNATTRIBUTED, sentences=tuple(unsure))
    if ladder.wait_share.value < WORTH:
        word, sentences = Part.STEP, [describe_step(ladder, name)]
    else:
        word, reason = _find_cause(ladder, phrases)
        sentences = [describe_waits(ladder, name), reason]
    return Verdict(word=word, sentences=(*sentences, describe_start_up(ladder, first_batch_s)))


def needs_more_rounds(ladder: Ladder) -> bool:
    """True if it is open whether the loader is worth improving, or which of its parts is the
    greatest."""
    wait = ladder.wait_share
    # A verdict may be given although the interval contains the threshold; while rounds may still be
    # added, it is not.
    if not _is_sure(ladder) or wait.low < WORTH < wait.high:
        return True
    return wait.value >= WORTH and leading_row(ladder).sure_greatest < SURE


def tells_too_little(ladder: Ladder) -> bool:
    """True if the verdict is open, or the cost of some part is not known to a few percent of the
    epoch."""
    # The gain of removing a part depends on its size, even if the verdict is sure.
    is_wide = any(row.share.high - row.share.low > WIDE for row in ladder.rows)
    return is_wide or needs_more_rounds(ladder)


def _is_sure(ladder: Ladder) -> bool:
    """True if the rounds tell whether the loader is worth improving."""
    wait = ladder.wait_share
    return wait.low > 0 if wait.value >= WORTH else wait.high <= MOST_UNSURE


def _find_cause(ladder: Ladder, phrases: dict[Part, str]) -> tuple[Part, str]:
    """The part that is the cause of the wait, and the sentence that says so, or why none is
    named."""
    if ladder.residue > MOST_UNATTRIBUTED:
        return Part.UNATTRIBUTED, describe_misfit(ladder)
    # Less than half of the wait is in next(): the rest is in slower steps, which the ladder would
    # wrongly give to a part of the loader.
    if ladder.slower_steps and ladder.slower_steps.low > ladder.wait_share.value / 2:
        return Part.UNATTRIBUTED, describe_disagreement(ladder)
    leading = leading_row(ladder)
    is_known = leading.sure_greatest >= SURE
    reason = describe_wait(ladder, phrases, is_known)
    return (leading.rung if is_known else Part.UNATTRIBUTED), reason
