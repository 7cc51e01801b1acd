"""Format the answer of `fastloop attach --try`: the changes that were tried, and their gains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fastloop.core.load_text import describe_load
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    show_estimate,
    show_fine_percent,
    show_percent,
    show_time,
    significant,
)
from fastloop.core.stats import Estimate
from fastloop.core.text import align, wrap
from fastloop.explain.attach.loss_comparison import LossComparison
from fastloop.explain.attach.run_length import (
    FEWEST_ROUNDS,
    LEAST_S,
    minutes_for_all,
    minutes_to_ask_for,
)
from fastloop.explain.attach.script_patch import show_command
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.change import FASTLOADER

UNCLEAR_FACTOR = 2.0
"""The effect of a change is unclear if its interval has both gains and losses, and the longest time
in the interval is more than this many times the shortest. Chosen by hand: such an interval fits a
change that halves the time, and also a change that does nothing."""
NOT_KNOWN = "It can't be told whether the change keeps the"
"""Beginning of a sentence on samples or losses that were not compared."""


def format_tried(tried: TriedLoop, patch_path: Path | None) -> str:
    """The text that is printed: whether the machine was quiet, the answer, a row for each change,
    and the patch."""
    load = wrap(describe_load(tried.machine_load, "round", "rounds"))
    lines = [*load, *wrap([_answer(tried)]), "", *align(_rows(tried)), *wrap(_tell_data(tried))]
    lines += wrap([*_tell_short_runs(tried), *(f"{note}." for note in tried.notes)])
    if tried.advice:
        lines += ["", *wrap([f"{tried.advice}."])]
    if patch_path:
        lines += ["", show_command(patch_path), "", tried.patch.rstrip("\n")]
    return "\n".join(lines)


def _rows(tried: TriedLoop) -> list[tuple[str, ...]]:
    """The changes as text, below a heading."""
    rows = [("tried", "the loop's time", "predicted to save")]
    for each in tried.changes:
        saved = _show_gain(each)
        # A change that loses much, for example, is not run again.
        if each.gain and each.rounds == 1:
            saved += " in 1 round"
        bound = "at least " if each.is_least else ""
        predicted = "" if each.predicted is None else f"{bound}{show_percent(each.predicted)}"
        rows.append((each.change, saved, predicted))
    return rows


def _tell_data(tried: TriedLoop) -> list[str]:
    """The sentences on samples and losses with the recommended change; none if none is
    recommended."""
    if tried.best is None:
        return []
    # If the runs that compare both have failed, or had no time, neither is known, for one reason.
    is_unknown = tried.same_samples is None and tried.losses.same is None
    if is_unknown and tried.not_compared == tried.losses.not_compared:
        return [f"{NOT_KNOWN} samples and the losses: {tried.not_compared}."]
    return [_tell_samples(tried), _tell_losses(tried.losses)]


def _tell_losses(losses: LossComparison) -> str:
    """The sentence on the losses."""
    if losses.same is None:
        return f"{NOT_KNOWN} losses: {losses.not_compared}."
    calls = f"(calls of backward(): {losses.count})"
    if losses.difference is None or losses.from_batch is None:
        return f"With the change the first pass has the same losses to the last digit {calls}."
    most = show_fine_percent(losses.difference)
    changed = f"differ from batch {losses.from_batch} on, by up to {most}"
    return f"With the change the losses of the first pass {changed} {calls}."


def _tell_samples(tried: TriedLoop) -> str:
    """The sentence on the samples."""
    if tried.same_samples is None:
        return f"{NOT_KNOWN} samples: {tried.not_compared}."
    if tried.same_samples:
        return "With the change the first pass has the same samples as without it."
    reasons = ""
    # These are the cases in which FastLoader is known to deliver other samples.
    if tried.best is not None and tried.best.startswith(FASTLOADER):
        own_code = "FastLoader decodes images and draws random crops by code of its own"
        reasons = f"; {own_code}, and under Lightning its iter() is called once more"
    return f"With the change the first pass has other samples than without it{reasons}."


def _tell_short_runs(tried: TriedLoop) -> list[str]:
    """The sentence on runs that are too short to be like a longer one; empty for others."""
    if tried.seconds >= LEAST_S:
        return []
    return [
        f"The loop takes only {show_time(tried.seconds)} in such a run: starting workers weighs "
        "more than in a longer one, and differences are less certain."
    ]


def _answer(tried: TriedLoop) -> str:
    loop = f"the loop at {tried.place}"
    if tried.best is None:
        return _answer_without_change(tried, loop)
    (best,) = [each for each in tried.changes if each.change == tried.best]
    batches = f"in {best.rounds} rounds of its first {tried.batches} batches"
    return f"{tried.best} {_show_gain(best)} of the time of {loop}, {batches}."


def _answer_without_change(tried: TriedLoop, loop: str) -> str:
    """The answer if no change is recommended."""
    known = [each for each in tried.changes if each.gain]
    left = sum(not each.gain and not each.failure for each in tried.changes)
    all_minutes = _show_minutes(tried, minutes_for_all(tried.least_minutes))
    if not known and left:
        return (
            f"No answer yet for {loop}: no change was compared in time; {all_minutes} or more will "
            "tell."
        )
    if not known:
        return f"No change helps {loop}: none of them runs."
    if reason := _tell_unsure(tried, known):
        return f"No answer yet for {loop}: {reason}."
    best = f"for certain: the best, {known[0].change}, {_show_gain(known[0])}"
    if not left:
        return f"No change helps {loop} {best}."
    others = "1 other was" if left == 1 else f"{left} others were"
    return (
        f"No change that was tried helps {loop} {best}; {others} not run, for which {all_minutes} "
        "has time."
    )


def _tell_unsure(tried: TriedLoop, known: Sequence[TriedChange]) -> str:
    """The reason why the best one of these changes may help after all, and the way to tell; empty
    if it does not help."""
    first = known[0]
    assert first.gain is not None
    # More time adds no round for a change that was left out of the last rounds. It adds none at all
    # if the rounds did not end for lack of time.
    most_rounds = max(each.rounds for each in known)
    needs_time = tried.is_out_of_time and first.rounds == most_rounds
    if _is_unclear(first.gain):
        more = _show_minutes(tried, 2 * tried.minutes)
        way = f"a quieter machine, or {more}, may" if needs_time else "a quieter machine may"
        return (
            f"the loop's time with {first.change} differs too much from round to round; {way} tell"
        )
    if first.gain.value <= 0 or first.rounds >= FEWEST_ROUNDS:
        return ""
    rounds = f"in {first.rounds} of at least {FEWEST_ROUNDS} rounds"
    way = f"; {_show_minutes(tried, tried.least_minutes)} or more will tell"
    if not needs_time:
        # Another change has taken its place in the last rounds, if it ran in more of them.
        others = ", after which others had saved more" if first.rounds < most_rounds else ""
        way = f"{others}; a quieter machine may tell"
    return f"{first.change} {_show_gain(first)} {rounds}{way}"


def _show_minutes(tried: TriedLoop, enough: float) -> str:
    """The `--minutes=` to advise.

    enough: minutes that suffice, or may suffice, as for `minutes_to_ask_for`.
    """
    return f"--minutes={minutes_to_ask_for(tried.minutes, enough):.1f}"


def _show_gain(tried: TriedChange) -> str:
    if tried.gain is None:
        return f"failed: {tried.failure}" if tried.failure else "was not run: the time was used up"
    if _is_unclear(tried.gain):
        return "differs too much from round to round"
    return _show_saving(tried.gain) if tried.gain.value >= 0 else _show_loss(tried.gain)


def _show_saving(gain: Estimate) -> str:
    # A wide interval tells no more than its end nearest to the present time.
    if _is_wider(gain, WIDEST_INTERVAL):
        return f"saves at least {show_percent(gain.low)}"
    return f"saves {_show_bounds(gain, show_percent)}"


def _show_loss(gain: Estimate) -> str:
    low, high = 1 - gain.high, 1 - gain.low
    if _is_wider(gain, WIDEST_INTERVAL):
        return f"takes at least {significant(low)} times as long"
    longer = replace(gain, value=1 - gain.value, low=low, high=high)
    if significant(longer.value) == "1":
        return "takes as long as it does now"
    return f"takes {_show_bounds(longer, significant)} times as long"


def _is_unclear(gain: Estimate) -> bool:
    """True if the change may save time as well as cost some, and the interval is wide."""
    return _is_wider(gain, UNCLEAR_FACTOR) and gain.low <= 0 <= gain.high


def _is_wider(gain: Estimate, factor: float) -> bool:
    """True if the ends of the loop's time with the change differ by more than the factor."""
    return 1 - gain.low > factor * (1 - gain.high)


def _show_bounds(gain: Estimate, show: Callable[[float], str]) -> str:
    """The gain with its bounds; a single round has none."""
    return show(gain.value) if gain.low == gain.high else show_estimate(gain, show)
