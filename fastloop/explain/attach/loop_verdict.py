"""Judge what limits a script's loop: the verdict names a part of its time, and says why.

The loop of one rank is judged in the same way as the loop of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fastloop.core.cgroup import usable_cores
from fastloop.core.explanation import Verdict
from fastloop.core.machine_load import QUIET_SHARE
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    show_estimate,
    show_percent,
    show_time,
    significant,
)
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loops import OF_STEPS, Loop, wait_share
from fastloop.explain.verdict import MOST_UNSURE_SHARE, WORTH_IMPROVING
from fastloop.explain.verdict import PHRASES as JOB_PHRASES

LEAST_CONTENTION = 0.02
"""Share of the time below which the first sentence does not mention contention, in which the
loader's workers have the cores that a step needs."""
MOST_SLOWED = 4.0
"""Upper bound of the factor by which other programs are assumed to slow down the loop: the number
of cores, divided by the number of cores that the other programs leave free. Without a bound it
would be infinite on a machine that they use completely. Chosen by hand."""
PHRASES = JOB_PHRASES | {Part.DECODE: "the dataset: reading and decoding samples"}
"""Part -> the phrase for it in a sentence, as in a job's verdict. A script's dataset is not taken
apart, unlike a job's, so reading and decoding are one part here."""


def judge_loop(loop: Loop, shares: Mapping[Part, Estimate]) -> Verdict:
    """The verdict on a loop: the part that limits it, and sentences with the reasons.

    shares: each part's share of the loop's time.
    """
    wait = wait_share(dict(shares))
    part = _choose_part(wait, shares)
    sentences = [_tell_answer(loop, wait, part, shares), _tell_reason(loop, wait, part, shares)]
    if part is Part.STEP:
        sentences.append(loop.step_lines.describe(loop.facts["place"]))
    sentences.append(_tell_other_parts(loop, part, shares))
    return Verdict(word=part, sentences=tuple(filter(None, sentences)))


def _choose_part(wait: Estimate, shares: Mapping[Part, Estimate]) -> Part:
    """The part that limits the loop; UNATTRIBUTED if the intervals of the shares do not tell."""
    contention = _contention_share(shares)
    # Contention is the verdict only if it surely costs more than all waits together.
    if contention.value >= WORTH_IMPROVING and contention.low > max(0.0, wait.high):
        return Part.CONTENTION
    if wait.value < WORTH_IMPROVING:
        return Part.STEP if wait.high <= MOST_UNSURE_SHARE else Part.UNATTRIBUTED
    leading = _leading_part(shares)
    # `explain` resamples its rounds to find how sure the greatest part is. A script runs only once:
    # its greatest part is sure if no other share is above the lower end of the part's interval.
    is_sure = wait.low > 0 and shares[leading].low > 0 and not _rival_parts(shares)
    return leading if is_sure else Part.UNATTRIBUTED


def _tell_other_parts(loop: Loop, part: Part, shares: Mapping[Part, Estimate]) -> str:
    """The sentence on the other parts that the verdict might name on a quiet machine.

    Empty if there are no such parts, or if the verdict is UNATTRIBUTED.
    """
    others = _possible_parts(loop, shares) - {part, Part.UNATTRIBUTED}
    if part is Part.UNATTRIBUTED or not others:
        return ""
    used = f"{significant(loop.other_cores, 2)} of {usable_cores()} cores"
    names = " or ".join(sorted(others))
    return (
        f"The verdict may differ on a quiet machine: other programs used {used}, which may slow "
        f"steps down more than loading, or less; {names} is possible, too"
    )


def _possible_parts(loop: Loop, shares: Mapping[Part, Estimate]) -> set[Part]:
    """The parts that the verdict might name without other programs; none on a quiet machine.

    Other programs may have slowed down only the steps, or only the waits. Each of these two cases
    gives a part.
    """
    cores = usable_cores()
    if loop.other_cores <= QUIET_SHARE * cores:
        return set()
    slowed = cores / max(cores - loop.other_cores, cores / MOST_SLOWED)
    parts = set()
    for of_steps, of_waits in ((slowed, 1.0), (1.0, slowed)):
        quicker = _divide_shares(shares, of_steps, of_waits)
        parts.add(_choose_part(wait_share(quicker), quicker))
    return parts


def _divide_shares(
    shares: Mapping[Part, Estimate], of_steps: float, of_waits: float
) -> dict[Part, Estimate]:
    """The shares if steps took 1 / of_steps, and waits 1 / of_waits of their time."""
    factors = {part: of_steps if part in OF_STEPS else of_waits for part in shares}
    whole = sum(each.value / factors[part] for part, each in shares.items())
    return {
        part: replace(
            each,
            value=each.value / factors[part] / whole,
            low=each.low / factors[part] / whole,
            high=each.high / factors[part] / whole,
        )
        for part, each in shares.items()
    }


def _contention_share(shares: Mapping[Part, Estimate]) -> Estimate:
    """The share of contention in the loop's time; 0 if the loop has no such part."""
    return shares.get(Part.CONTENTION, Estimate(value=0.0, low=0.0, high=0.0, is_interval=True))


def _leading_part(shares: Mapping[Part, Estimate]) -> Part:
    """The part with the greatest share of the waits."""
    waits = [part for part in shares if part not in OF_STEPS]
    return max(waits, key=lambda part: shares[part].value)


def _rival_parts(shares: Mapping[Part, Estimate]) -> list[Part]:
    """The parts of the waits that may be greater than the leading part.

    A part may be greater if its share is above the lower end of the leading part's interval.
    """
    leading = _leading_part(shares)
    others = [part for part in shares if part not in (*OF_STEPS, leading)]
    return [part for part in others if shares[part].value > shares[leading].low]


def _tell_answer(loop: Loop, wait: Estimate, part: Part, shares: Mapping[Part, Estimate]) -> str:
    """The first sentence: the part that limits the loop, its share, and the possible gain."""
    if part is Part.CONTENTION:
        return _tell_contention(loop, shares)
    if part is Part.STEP:
        return _tell_step(loop, wait, shares)
    if wait.value < WORTH_IMPROVING or wait.low <= 0:
        return _tell_no_answer(loop, wait)
    return _tell_wait(loop, wait, shares)


def _tell_contention(loop: Loop, shares: Mapping[Part, Estimate]) -> str:
    """The first sentence on a loop that its own workers slow down."""
    return (
        f"The loop over {loop.name} is slowed down by its own workers: for "
        f"{_show_contention(shares)} of the time its step could go on, but they have the cores; "
        f"{_tell_time_without_waits(loop, shares)}"
    )


def _tell_step(loop: Loop, wait: Estimate, shares: Mapping[Part, Estimate]) -> str:
    """The first sentence on a loop that its step limits."""
    name = f"The loop over {loop.name} is limited by its step"
    most = show_percent(max(0.0, wait.high))
    seconds = _show_loop_time(loop)
    if _is_contention_told(shares):
        return (
            f"{name}: it waits for data at most {most} of {seconds}, and for cores that its "
            f"workers use {_show_contention(shares)}"
        )
    # Workers use cores, which may slow the step down. A loader with fewer workers may then save
    # more than the waits, so the sentence promises no maximum.
    if loop.facts["num_workers"]:
        return (
            f"{name}: it waits for data at most {most} of {seconds}, while its workers use cores, "
            "too"
        )
    # Other programs may slow the steps down more than loading.
    if _possible_parts(loop, shares) - {Part.STEP}:
        return f"{name} on this busy machine: it waits for data at most {most} of {seconds}"
    return f"{name}: a perfect loader would save at most {most} of {seconds}"


def _tell_no_answer(loop: Loop, wait: Estimate) -> str:
    """The first sentence on a loop with too few batches for an answer."""
    likely, most = show_percent(max(0.0, wait.value)), show_percent(max(0.0, wait.high))
    return (
        f"No answer yet: these batches can't tell whether the loop over {loop.name} waits: "
        f"{likely} is likely, and anything up to {most} possible"
    )


def _tell_wait(loop: Loop, wait: Estimate, shares: Mapping[Part, Estimate]) -> str:
    """The first sentence on a loop that waits for data."""
    is_wide = wait.high >= WIDEST_INTERVAL * wait.low
    share = f"about {show_percent(wait.value)}" if is_wide else show_estimate(wait, show_percent)
    cores = ""
    if _is_contention_told(shares):
        cores = f", and its step for cores that its workers use {_show_contention(shares)}"
    name = f"The loop over {loop.name}"
    rest = _tell_time_without_waits(loop, shares)
    return f"{name} waits for data {share} of the time{cores}; {rest}"


def _is_contention_told(shares: Mapping[Part, Estimate]) -> bool:
    """True if the first sentence mentions contention."""
    return _contention_share(shares).value >= LEAST_CONTENTION


def _show_contention(shares: Mapping[Part, Estimate]) -> str:
    """The share of contention in the loop's time, as text."""
    return show_estimate(_contention_share(shares), show_percent)


def _seconds_of_rank(loop: Loop) -> float:
    """Seconds of the loop, on average over its ranks."""
    return loop.seconds / max(1, len(loop.ranks))


def _show_loop_time(loop: Loop) -> str:
    """The time of the loop, or of each rank if the loop has ranks, as text."""
    of_ranks = " a rank" if loop.ranks else ""
    return f"{show_time(_seconds_of_rank(loop))}{of_ranks}"


def _tell_time_without_waits(loop: Loop, shares: Mapping[Part, Estimate]) -> str:
    """The time that the loop's steps alone would take, as the end of a sentence."""
    step = shares[Part.STEP]
    steps, low, high = (
        show_time(_seconds_of_rank(loop) * each) for each in (step.value, step.low, step.high)
    )
    # Busy workers slow the steps down, because both share memory bandwidth and caches. This effect
    # is not measured, so the steps alone may take even less.
    if loop.facts["num_workers"]:
        told = f"{high if step.is_interval else steps} or less"
    # Bounds are left out if few batches have no interval, or if both bounds look the same as text.
    elif step.is_interval and low != high:
        told = f"{steps} (between {low} and {high})"
    else:
        told = steps
    return f"with a perfect loader its {_show_loop_time(loop)} would be {told}"


def _tell_reason(loop: Loop, wait: Estimate, part: Part, shares: Mapping[Part, Estimate]) -> str:
    """The sentence on the greatest part of the wait; empty if the wait is short or not sure."""
    if wait.value < WORTH_IMPROVING or wait.low <= 0:
        return ""
    leading = _leading_part(shares)
    if rivals := _rival_parts(shares):
        names = ", ".join(str(each) for each in (leading, *rivals))
        return f"It can't be told which of these parts is the greatest: {names}"
    if part is Part.UNATTRIBUTED:
        return f"The greatest part, {leading}, is not beyond noise"
    percentage = show_percent(shares[leading].value / wait.value)
    is_of_epochs = leading is Part.START_UP
    count = len(loop.passes) if is_of_epochs else loop.batches
    each_ms = significant(1e3 * shares[leading].value * loop.seconds / max(1, count))
    unit = "an epoch" if is_of_epochs else "a batch"
    told = (
        f"The greatest part of the wait, {percentage} of it, is {PHRASES[leading]}, "
        f"{each_ms} ms {unit}"
    )
    # The verdict names a part of the wait although the table's row of the step is greater, so the
    # sentence mentions the step, too.
    if (step := shares[Part.STEP].value) <= shares[leading].value:
        return told
    return f"{told}; its steps, in which it does not wait, take {show_percent(step)} of the time"
