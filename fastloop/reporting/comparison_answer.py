"""The outcome of a comparison of two sets, in at most three sentences; the first is the answer."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.number_text import show_time, significant, unit_of_all
from fastloop.reporting.comparison import FEWEST_TRIALS, Change, no_longer_finishes
from fastloop.reporting.conditions import Pairs


def comparison_answer(pairs: Pairs, changes: Sequence[Change], fail_above: float) -> str:
    """Sentences that answer: has a job become slower by more than `fail_above` percent, does one no
    longer finish, and how many changes could not be judged?"""
    broken = [name for name, pair in pairs.items() if no_longer_finishes(*pair)]
    regressions = [each for each in changes if each.is_regression(fail_above)]
    unknown = [each for each in changes if each.ratio is None]
    sentences = [_broken_sentence(broken)] if broken else []
    if regressions:
        sentences += _slower_sentences(regressions, len(changes))
    # nothing is known of any change, so no job can be called fine
    elif changes and len(unknown) == len(changes):
        sentences.append(f"No answer yet: each set needs {FEWEST_TRIALS} trials of a job or more.")
        return " ".join(sentences)
    elif changes and not broken:
        sentences.append(_fine_sentence(changes, fail_above))
    elif not broken:
        sentences.append("No answer: no job has finished in both sets.")
    if unknown:
        needed = f"each set needs {FEWEST_TRIALS} trials or more"
        sentences.append(f"{len(unknown)} of {len(changes)} are not judged: {needed}.")
    return " ".join(sentences)


def describe_times(change: Change) -> str:
    """Both times of a change, the new one first: `12.1 us a sample against 9.3 us`."""
    unit = unit_of_all([change.base_s, change.new_s])
    return f"{show_time(change.new_s, unit)} a sample against {show_time(change.base_s, unit)}"


def _broken_sentence(names: Sequence[str]) -> str:
    verb = "no longer finishes" if len(names) == 1 else "no longer finish"
    return f"{', '.join(names)} {verb}."


def _slower_sentences(regressions: Sequence[Change], compared: int) -> list[str]:
    worst = max(regressions, key=lambda each: each.new_s / each.base_s)
    ratio = worst.ratio
    # a change without a ratio is no regression
    assert ratio is not None
    bounds = f"95 %: {significant(ratio.low)} to {significant(ratio.high)}"
    times = f"{significant(ratio.estimate)} times as long as in the base"
    answer = f"{worst.job} has become slower: {worst.benchmark} takes {times}"
    sentences = [f"{answer} ({describe_times(worst)}; {bounds})."]
    if len(regressions) > 1:
        sentences.append(f"In all {len(regressions)} of {compared} comparisons are slower.")
    return sentences


def _fine_sentence(changes: Sequence[Change], fail_above: float) -> str:
    faster = sum(each.is_faster for each in changes)
    told = {"is faster" if faster == 1 else "are faster": faster}
    slower = sum(each.is_slower for each in changes)
    told |= {"is slower by less" if slower == 1 else "are slower by less": slower}
    counts = [f"{count} of {len(changes)} {words}" for words, count in told.items() if count]
    rest = f": {', '.join(counts)}" if counts else ""
    return f"No job has become slower by more than {fail_above:g} %{rest}."
