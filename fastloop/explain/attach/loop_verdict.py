"""The verdict on a script's loop: a word, and the sentences that give the reason."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fastloop.core.explanation import Verdict
from fastloop.core.number_text import show_estimate, show_percent, show_time, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loops import Loop, wait_share
from fastloop.reporting.report_tables import WIDEST

WORTH = 0.10
"""A loader is worth improving if a perfect one would save at least this share of a loop's time."""
MOST_UNSURE = 0.25
"""The verdict is `step` only if the interval of that share ends at or below this."""
PHRASES = {
    Part.START_UP: "starting and ending epochs",
    Part.HAND_OFF: "the loader's own sampler, processes and queues",
    Part.COLLATE: "collating samples",
    Part.TRANSFORM: "transforming samples",
    Part.DECODE: "the dataset: reading and decoding samples",
}


def judge_loop(loop: Loop, shares: Mapping[Part, Estimate]) -> Verdict:
    """The verdict on a loop by the shares of its parts."""
    wait = wait_share(dict(shares))
    word = _choose_word(wait, shares)
    sentences = [_first_sentence(loop, wait, word), _reason(loop, wait, word, shares)]
    return Verdict(word=word, sentences=tuple(filter(None, sentences)))


def _choose_word(wait: Estimate, shares: Mapping[Part, Estimate]) -> Part:
    if wait.value < WORTH:
        return Part.STEP if wait.high <= MOST_UNSURE else Part.UNATTRIBUTED
    leading = _leading(shares)
    # The script runs once: unlike explain, no draws of rounds tell how sure the greatest part is,
    # so that the intervals must not overlap.
    is_sure = wait.low > 0 and shares[leading].low > 0 and not _rivals(shares)
    return leading if is_sure else Part.UNATTRIBUTED


def _leading(shares: Mapping[Part, Estimate]) -> Part:
    return max((part for part in shares if part != Part.STEP), key=lambda part: shares[part].value)


def _rivals(shares: Mapping[Part, Estimate]) -> list[Part]:
    """Other parts that may be as great as the greatest one."""
    leading = _leading(shares)
    others = [part for part in shares if part not in (Part.STEP, leading)]
    return [part for part in others if shares[part].value > shares[leading].low]


def _first_sentence(loop: Loop, wait: Estimate, word: Part) -> str:
    of_ranks = " a rank" if loop.ranks else ""
    spent_s = loop.seconds / max(1, len(loop.ranks))
    seconds = f"{show_time(spent_s)}{of_ranks}"
    name = f"The loop over {loop.name}"
    if word is Part.STEP:
        most = show_percent(max(0.0, wait.high))
        return f"{name} is limited by its step: no loader can gain more than {most} of {seconds}"
    if wait.value < WORTH or wait.low <= 0:
        likely, most = (show_percent(max(0.0, each)) for each in (wait.value, wait.high))
        answer = "No answer yet: these batches can't tell"
        guess = f"{likely} is likely, and anything up to {most} possible"
        return f"{answer} whether the loop over {loop.name} waits: {guess}"
    is_wide = wait.high >= WIDEST * wait.low
    share = f"about {show_percent(wait.value)}" if is_wide else show_estimate(wait, show_percent)
    rest = f"with a perfect loader its {seconds} would be {show_time(spent_s * (1 - wait.value))}"
    return f"{name} waits for data {share} of the time; {rest}"


def _reason(loop: Loop, wait: Estimate, word: Part, shares: Mapping[Part, Estimate]) -> str:
    if wait.value < WORTH or wait.low <= 0:
        return ""
    leading = _leading(shares)
    if rivals := _rivals(shares):
        names = ", ".join(str(part) for part in (leading, *rivals))
        return f"It can't be told which of these parts is the greatest: {names}"
    if word is Part.UNATTRIBUTED:
        return f"The greatest part, {leading}, is not beyond noise"
    part = show_percent(shares[leading].value / wait.value)
    each_ms = significant(1e3 * shares[leading].value * loop.seconds / max(1, loop.batches))
    return f"{part} of the wait is {PHRASES[leading]}, {each_ms} ms a batch"


def steady_step_ms(loop: Loop) -> float:
    """Median time of a step."""
    return float(np.median(loop.steps_ns)) / 1e6
