"""Judge a ladder: the verdict is a word for the cause, with sentences that give the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastloop.core.explanation import Ladder, LadderRow, Verdict, WhatIf
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.parts import Part
from fastloop.core.stats import no_less_than_zero
from fastloop.core.text import wrap

WORTH_IMPROVING = 0.10
"""A loader is worth improving if a perfect one would save at least this share of a job's epoch, or
of a script's loop. This is a choice and not a measurement; the study in experiments/explain uses
the same threshold."""
MOST_UNSURE_SHARE = 0.25
"""The verdict is `step` only if the interval of the share that a perfect loader saves ends at or
below this value. The value is above WORTH_IMPROVING because the intervals of few rounds are wide:
otherwise many healthy jobs would get no verdict."""
MOST_RESIDUE_SHARE = 0.05
"""No part is named if the sum of the parts differs from the whole, beyond noise, by more than this
share of an epoch."""
LONGEST_INTERVAL_SHARE = 0.05
"""Rounds are added if the interval of a part is longer than this share of the epoch."""
LEAST_CERTAINTY = 0.80
"""A part is named only if it is the greatest with at least this certainty. In simulated campaigns
(experiments/verdicts) at most 5 % of the verdicts were wrong. That is fewer than the 20 % that this
threshold allows, because the part next to a surely greatest one is seldom far below it."""
PHRASES = {
    Part.COPY: "placing batches on the device",
    Part.START_UP: "starting and ending epochs",
    Part.HAND_OFF: "the loader's own sampler, processes and queues",
    Part.COLLATE: "collating samples",
    Part.TRANSFORM: "transforming samples",
    Part.DECODE: "making samples (decoding, or other work of the Dataset)",
    Part.READ: "reading",
    Part.UNATTRIBUTED: "the loader as a whole (its parts can't be measured)",
}
LEAST_NAMED_SHARE = 0.05
"""A part with less than this share of the wait is not named."""
LEAST_LIKELY_CERTAINTY = 0.05
"""A part is named as perhaps the greatest only if it is at least this certain."""
ADVICE = "more rounds (trials=) or a quieter machine tell more"


def judge(ladder: Ladder, name: str, first_batch_s: float, decoding: str = "") -> Verdict:
    """The verdict on a job.

    name: the name of its benchmark. first_batch_s: seconds from opening the loader to its first
    batch. decoding: words for making a sample; empty if nothing is known of it.
    """
    phrases = _name_parts(decoding)
    if not _knows_worth(ladder):
        unsure = _describe_unsure(ladder, name, phrases)
        return Verdict(word=Part.UNATTRIBUTED, sentences=tuple(unsure))
    if ladder.wait_share.value < WORTH_IMPROVING:
        word = Part.STEP
        sentences = [_describe_step(ladder, name)]
    else:
        word, reason = _find_cause(ladder, phrases)
        sentences = [_describe_waits(ladder, name), reason]
    return Verdict(word=word, sentences=(*sentences, _describe_start_up(ladder, first_batch_s)))


def add_threads(verdict: Verdict, what_ifs: Sequence[WhatIf]) -> Verdict:
    """The verdict, with the proven gain of fewer torch threads added to its first sentence.

    A gain below WORTH_IMPROVING is not added.
    """
    # Threads that wait for each other slow down steps and loading alike, so no other part of the
    # verdict shows them.
    tried = [
        (each.realised_gain, each.change)
        for each in what_ifs
        if each.realised_gain and each.change.startswith("torch_threads=")
    ]
    proven = [each for each in tried if each[0].low > 0 and each[0].value >= WORTH_IMPROVING]
    if not proven:
        return verdict
    gain, change = max(proven, key=lambda each: each[0].value)
    first, *others = verdict.sentences
    first = f"{first}; {change} saves {show_estimate(gain, show_percent)} of it"
    return Verdict(word=verdict.word, sentences=(first, *others))


def verdict_lines(verdict: Verdict, more: str = "") -> list[str]:
    """The printed lines of a verdict. more: a further sentence."""
    return [f"verdict: {verdict.word}", *wrap([f"{verdict.text} {more}"])]


def is_undecided(ladder: Ladder) -> bool:
    """True if the rounds don't tell whether the loader is worth improving, or which part of the
    loader is the greatest."""
    wait = ladder.wait_share
    # `judge` may accept an interval that contains the threshold. While rounds can be added, that
    # interval is a reason to add some.
    if not _knows_worth(ladder) or wait.low < WORTH_IMPROVING < wait.high:
        return True
    return wait.value >= WORTH_IMPROVING and _leading_row(ladder).sure_greatest < LEAST_CERTAINTY


def is_imprecise(ladder: Ladder) -> bool:
    """True if the ladder is undecided, or the interval of some part's share of the epoch is longer
    than LONGEST_INTERVAL_SHARE."""
    # The gain of removing a part depends on its size, even if the verdict is sure.
    is_wide = any(row.share.high - row.share.low > LONGEST_INTERVAL_SHARE for row in ladder.rows)
    return is_wide or is_undecided(ladder)


def _knows_worth(ladder: Ladder) -> bool:
    """True if the rounds tell whether the loader is worth improving."""
    wait = ladder.wait_share
    return wait.low > 0 if wait.value >= WORTH_IMPROVING else wait.high <= MOST_UNSURE_SHARE


def _find_cause(ladder: Ladder, phrases: dict[Part, str]) -> tuple[Part, str]:
    """The part that causes the wait, or UNATTRIBUTED, and the sentence that gives the reason."""
    if ladder.residue > MOST_RESIDUE_SHARE:
        return Part.UNATTRIBUTED, _describe_misfit(ladder)
    # If less than half of the wait is in next(), the rest is in slower steps, which the ladder
    # would wrongly assign to a part of the loader.
    if ladder.slower_steps and ladder.slower_steps.low > ladder.wait_share.value / 2:
        return Part.UNATTRIBUTED, _describe_disagreement(ladder)
    leading = _leading_row(ladder)
    is_known = leading.sure_greatest >= LEAST_CERTAINTY
    reason = _describe_wait(ladder, phrases, is_known)
    return (leading.rung if is_known else Part.UNATTRIBUTED), reason


def _name_parts(decoding: str) -> dict[Part, str]:
    """Words for every part. decoding: words for making a sample; empty: the usual ones."""
    return PHRASES | ({Part.DECODE: decoding} if decoding else {})


def _leading_row(ladder: Ladder) -> LadderRow:
    """The greatest part of an epoch that a perfect loader would save."""
    rows = [row for row in ladder.rows if row.rung is not Part.STEP]
    return max(rows, key=lambda row: row.share.value)


def _describe_step(ladder: Ladder, name: str) -> str:
    """The first sentence on a job with a loader that is not worth improving."""
    most = show_percent(max(0.0, ladder.wait_share.high))
    epoch = _show_seconds(ladder.epoch_s.value)
    return (
        f"This {name} is limited by its step: a perfect loader would save at most {most} of an "
        f"epoch of {epoch}"
    )


def _describe_waits(ladder: Ladder, name: str) -> str:
    """The first sentence on a job that waits for data."""
    wait = show_estimate(ladder.wait_share, show_percent)
    perfect, epoch = _show_seconds(ladder.perfect_s.value), _show_seconds(ladder.epoch_s.value)
    times = f"an epoch would take {perfect} instead of {epoch}"
    return f"This {name} waits for data {wait} of the time; with a perfect loader {times}"


def _describe_unsure(ladder: Ladder, name: str, phrases: Mapping[Part, str]) -> list[str]:
    """Sentences on a job that may or may not wait: that there is no answer yet, the best guess with
    its bounds, and the part to look at."""
    wait = ladder.wait_share
    epoch = _show_seconds(ladder.epoch_s.value)
    noise = _describe_noise(ladder)
    answer = f"No answer yet: {noise[0].lower()}{noise[1:]}"
    likely, most = show_percent(max(0.0, wait.value)), show_percent(max(0.0, wait.high))
    least = f"from {show_percent(wait.low)} to {most}" if wait.low > 0 else f"up to {most}"
    guess = f"Best guess: this {name} waits {likely} of its {epoch}, anything {least} is possible"
    leading = _leading_row(ladder)
    # Naming a part that is probably not the greatest would mislead.
    if leading.sure_greatest < 0.5 or wait.value <= 0:
        return [answer, guess]
    part = (
        f"The greatest part of a wait would be {phrases[leading.rung]} ({_show_certainty(leading)})"
    )
    return [answer, guess, part]


def _describe_wait(ladder: Ladder, phrases: Mapping[Part, str], is_known: bool) -> str:
    """The parts of a wait, greatest first; if the greatest is not known, the parts that it may
    be."""
    rows = [row for row in ladder.rows if row.rung is not Part.STEP]
    rows.sort(key=lambda row: -row.share.value)
    if is_known:
        # Parts below zero count as zero. The others may then add up to more than the wait, and
        # shares must not exceed 100 %.
        total = max(ladder.wait_share.value, sum(max(0.0, row.share.value) for row in rows))
        named = [row for row in rows if row.share.value >= LEAST_NAMED_SHARE * total]
        parts = [f"{phrases[row.rung]} ({show_percent(row.share.value / total)})" for row in named]
        sure = _show_certainty(rows[0])
        exposed = show_estimate(rows[0].exposed_ms, significant)
        return (
            f"The wait is {', '.join(parts)}; the first takes {exposed} ms a batch, and is the "
            f"greatest part ({sure})"
        )
    rows.sort(key=lambda row: -row.sure_greatest)
    likely = [row for row in rows if row.sure_greatest >= LEAST_LIKELY_CERTAINTY]
    parts = [f"{phrases[row.rung]} ({_show_certainty(row)})" for row in likely]
    noise = _describe_noise(ladder)
    return f"The greatest part of the wait is {' or '.join(parts)}; {noise[0].lower()}{noise[1:]}"


def _describe_misfit(ladder: Ladder) -> str:
    """The reason why no part is named: the parts don't add up to the whole."""
    missing = show_percent(ladder.residue)
    return (
        f"Some parts are below zero, by {missing} of an epoch in all: the passes contradict each "
        "other, so no part is named as the cause"
    )


def _describe_disagreement(ladder: Ladder) -> str:
    """The reason why no part is named: next() takes less than a perfect loader saves."""
    slower = show_percent(ladder.slower_steps.value if ladder.slower_steps else 0.0)
    text = "Two measurements disagree: next() takes less time than a perfect loader would save"
    return (
        f"{text}. Steps between loads are slower than steps back to back, by {slower} of the "
        "epoch, as if loading took their cores: try torch_threads=1, or a quiet machine"
    )


def _describe_start_up(ladder: Ladder, first_batch_s: float) -> str:
    """The sentence on the time until the first batch, and between epochs."""
    gap = show_estimate(no_less_than_zero(ladder.start_up_s), _show_seconds)
    share = show_percent(ladder.start_up_s.value / ladder.epoch_s.value)
    first = (
        f"Start-up: the first batch comes {_show_seconds(first_batch_s)} after opening the loader"
    )
    return f"{first}; starting and ending an epoch takes {gap}, {share} of the epoch"


def _show_seconds(seconds: float) -> str:
    """The time in seconds, or in milliseconds if it is below 0.1 s."""
    return f"{significant(seconds)} s" if seconds >= 0.1 else f"{significant(1e3 * seconds)} ms"


def _describe_noise(ladder: Ladder) -> str:
    """The sentence on the noise of the passes, with advice."""
    if ladder.rounds == 1:
        return f"One round shows no noise, and {show_percent(ladder.noise)} is assumed; {ADVICE}"
    return f"Passes vary by {show_percent(ladder.noise)} from round to round; {ADVICE}"


def _show_certainty(row: LadderRow) -> str:
    """The certainty that the part is the greatest, in words."""
    # All draws may agree, but no measurement makes anything certain.
    return f"{100 * min(0.99, row.sure_greatest):.0f} % sure"
