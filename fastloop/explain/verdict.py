"""The verdict on a ladder: one word for the job, and the sentences that say why."""

from __future__ import annotations

from fastloop.core.explanation import Ladder, LadderRow, Rung, Verdict
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.stats import Estimate

WORTH = 0.10
"""Share of an epoch from which a loader is worth touching."""
MOST_UNSURE = 0.25
"""Upper end of the interval of that share up to which a loader is said not to be worth it."""
MOST_UNATTRIBUTED = 0.05
"""Share of an epoch by which the parts may miss the whole."""

PHRASES = {
    Rung.COPY: "placing batches on the device",
    Rung.START_UP: "starting and ending epochs",
    Rung.HAND_OFF: "the loader's own sampler, processes and queues",
    Rung.COLLATE: "collating samples",
    Rung.TRANSFORM: "transforming samples",
    Rung.DECODE: "decoding, or whatever else makes a sample",
    Rung.READ: "reading",
    Rung.UNATTRIBUTED: "a loader that can't be taken apart",
}


def judge(ladder: Ladder, name: str, first_batch_s: float) -> Verdict:
    """The verdict on a job.

    name: of its benchmark. first_batch_s: from opening the loader to its first batch.
    """
    word = _word(ladder)
    sentences = [_first_sentence(ladder, name, word), _reason(ladder, word)]
    sentences.append(_start_up(ladder, first_batch_s))
    return Verdict(word=word, sentences=tuple(filter(None, sentences)))


def _word(ladder: Ladder) -> Rung:
    if not _is_sure(ladder):
        return Rung.UNATTRIBUTED
    if ladder.wait_share.value < WORTH:
        return Rung.STEP
    leading = _leading(ladder)
    if ladder.residue > MOST_UNATTRIBUTED or leading.share.low <= 0 or _rivals(ladder):
        return Rung.UNATTRIBUTED
    return leading.rung


def _is_sure(ladder: Ladder) -> bool:
    """True where the rounds tell whether the loader is worth touching."""
    wait = ladder.wait_share
    return wait.low > 0 if wait.value >= WORTH else wait.high <= MOST_UNSURE


def _leading(ladder: Ladder) -> LadderRow:
    """The greatest part of an epoch that a perfect loader would not have."""
    rows = [row for row in ladder.rows if row.rung is not Rung.STEP]
    return max(rows, key=lambda row: row.share.value)


def _rivals(ladder: Ladder) -> list[LadderRow]:
    """Other parts of which these rounds don't say that they are smaller than the greatest."""
    leading = _leading(ladder)
    others = [row for row in ladder.rows if row.rung not in (Rung.STEP, leading.rung)]
    return [row for row in others if row.share.value > leading.share.low]


def _first_sentence(ladder: Ladder, name: str, word: Rung) -> str:
    wait = show_estimate(ladder.wait_share, show_percent)
    if not _is_sure(ladder):
        return f"These rounds can't tell whether this {name} waits for data: {wait} of the time"
    perfect, epoch = _seconds(ladder.perfect_s.value), _seconds(ladder.epoch_s.value)
    times = f"an epoch would take {perfect} instead of {epoch}"
    if word is Rung.STEP:
        gain = show_estimate(_no_less_than_zero(ladder.wait_share), show_percent)
        return f"This {name} is limited by its step: no loader can gain more than {gain} of {epoch}"
    return f"This {name} waits for data {wait} of the time; with a perfect loader {times}"


def _reason(ladder: Ladder, word: Rung) -> str:
    if not _is_sure(ladder):
        return "More rounds (trials=) or a quieter machine would"
    if word is Rung.STEP:
        return ""
    leading = _leading(ladder)
    part = show_percent(leading.share.value / ladder.wait_share.value)
    exposed = show_estimate(leading.exposed_ms, significant)
    text = f"{PHRASES[leading.rung]}, {exposed} ms a batch"
    if ladder.residue > MOST_UNATTRIBUTED:
        missing = show_percent(ladder.residue)
        return f"The parts miss the whole by {missing} of an epoch, so none is named as the cause"
    if rivals := _rivals(ladder):
        names = ", ".join(str(row.rung) for row in (leading, *rivals))
        return f"The rounds don't tell which of these parts is the greatest: {names}"
    if word is Rung.UNATTRIBUTED:
        return f"The greatest part is {text}, which is not beyond noise or can't be taken apart"
    return f"{part} of the wait is {text}"


def _start_up(ladder: Ladder, first_batch_s: float) -> str:
    gap = show_estimate(_no_less_than_zero(ladder.start_up_s), _seconds)
    share = show_percent(ladder.start_up_s.value / ladder.epoch_s.value)
    first = f"Start-up: the first batch comes {_seconds(first_batch_s)} after opening the loader"
    return f"{first}; starting and ending an epoch takes {gap}, {share} of it"


def _seconds(seconds: float) -> str:
    return f"{significant(seconds)} s" if seconds >= 0.1 else f"{significant(1e3 * seconds)} ms"


def _no_less_than_zero(estimate: Estimate) -> Estimate:
    bounds = (max(0.0, each) for each in (estimate.value, estimate.low, estimate.high))
    value, low, high = bounds
    return Estimate(value=value, low=low, high=high, is_interval=estimate.is_interval)
