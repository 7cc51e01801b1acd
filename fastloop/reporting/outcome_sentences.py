"""Write the verdict on a benchmark: at most three sentences, of which the first is the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastloop.core.auto_trials import AUTO
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    TimeUnit,
    show_fine_percent,
    show_time,
    significant,
    unit_of,
    unit_of_all,
)
from fastloop.core.pair_tests import MOST_TRIALS
from fastloop.core.result import Result, Shuffling
from fastloop.core.stats import Ratio
from fastloop.reporting.limit_text import describe_work
from fastloop.reporting.summary import Comparison, Row, ratio_by_round

MOST_SENTENCES = 3
"""Maximum number of sentences of a verdict; further ones are dropped."""
MOST_NAMED = 4
"""Maximum number of jobs of a tie that are named."""
LESS_FAR, MORE_KEPT = 0.1, 0.1
"""Differences of Shuffling.distance and neighbours_kept beyond which a job shuffles less than
another, if the difference is not due to chance."""
BEYOND_CHANCE = 4
"""A difference that exceeds this number of standard deviations is not due to chance. They are those
of the difference between two uniform shuffles. Only one normal value in 30,000 lies that far above
the mean; the limit is so high because all pairs of jobs are compared."""


def verdict(comparison: Comparison) -> str:
    """The winner and its lead, or the tie and how sure it is, or the reason for no ranking."""
    sentences = [*_outcome(comparison), shuffling_sentence(comparison), _limit(comparison)]
    return " ".join([sentence for sentence in sentences if sentence][:MOST_SENTENCES])


def _outcome(comparison: Comparison) -> list[str]:
    """Sentences that name the winner, the tie, or the reason for no ranking."""
    rows = comparison.rows
    if len(rows) == 1:
        return [
            f"{rows[0].label} takes {_time(rows[0])}; there is no other job to compare it with."
        ]
    if comparison.undetermined:
        lowest = f"The lowest median is {rows[0].label}'s, {show_time(rows[0].median_s)}"
        return [
            f"No ranking yet: {comparison.undetermined.rstrip('.')}.",
            f"{lowest}, the highest {rows[-1].label}'s, {show_time(rows[-1].median_s)}.",
        ]
    # The job of the lowest median has rank 1: no job is surely faster than it.
    best = [row for row in rows if row.rank == rows[0].rank]
    if len(best) == 1:
        return [f"{best[0].label} is fastest{_lead(comparison, best[0])}."]
    return _tie(comparison, best)


def _tie(comparison: Comparison, best: list[Row]) -> list[str]:
    """Sentences on the jobs that share the first rank."""
    family = _loader_of_all(comparison, best)
    # If all jobs of the tie have one loader, that loader is the answer, and the tie is between its
    # settings.
    if family:
        names = {row.label: row.label.removeprefix(f"{family}, ") for row in best}
        tie = _describe_tie(comparison, names)
        return [f"{family} is fastest{_lead(comparison, best[0])}.", f"Its {tie}."]
    tie = _describe_tie(comparison, {row.label: row.label for row in best})
    lead = _lead_of_all(comparison, best)
    if not lead:
        return [f"{tie}."]
    if all(row.label in comparison.equal for row in best[1:]):
        return [f"{tie}, {lead}."]
    return [f"{tie}.", f"{lead[0].upper()}{lead[1:]}."]


def _describe_tie(comparison: Comparison, names: Mapping[str, str]) -> str:
    """The beginning of a sentence on jobs that share the first rank.

    names: label of each job, the fastest first -> its name in the sentence.
    """
    first, *others = names
    equal = [names[first], *(names[each] for each in others if each in comparison.equal)]
    apart = [names[each] for each in others if each not in comparison.equal]
    if not apart:
        return f"{_list(equal)} are equally fast (within 2 %)"
    hint = _hint(comparison)
    if len(equal) == 1:
        return f"{_list([*names.values()])} can't be told apart yet ({hint})"
    return (
        f"{_list(equal)} are equally fast (within 2 %), and {_list(apart)} can't be told apart "
        f"from them yet ({hint})"
    )


def _hint(comparison: Comparison) -> str:
    """Ways to decide a tie: about how many trials, and trials=auto if it has not been tried."""
    enough = comparison.enough_trials
    ran = max(len(row.seconds) for row in comparison.rows)
    is_auto = comparison.look_share is not None
    parts = [f"after {ran} trials"] if is_auto else []
    if ran < enough < MOST_TRIALS:
        parts.append(f"about {enough:,} trials would")
    if not is_auto:
        parts.append(f"trials={AUTO} goes on until they are")
    return "; ".join(parts)


def _lead(comparison: Comparison, best: Row) -> str:
    """Speed as a multiple of the baseline's speed, or else of the next slower job's, after a
    colon."""
    base = comparison.row(comparison.baseline)
    other = base if base and base is not best else _next_slower(comparison, best)
    if other is None:
        return ""
    # The other's seconds over the best one's say how many times as fast this one is.
    ratio = ratio_by_round(other.by_round, best.by_round, comparison.look_share)
    if ratio is None:
        return ""
    unit = unit_of_all([best.median_s, other.median_s])
    times = f"{significant(unit.of(best.median_s))} {unit.name}"
    against = f"{times} against {show_time(other.median_s, _unit_beside(unit, other))}"
    bounds = _bounds(ratio, is_sure=best.label in other.faster)
    return f": {significant(ratio.estimate)} times {other.label} ({against}{bounds})"


def _lead_of_all(comparison: Comparison, best: list[Row]) -> str:
    """Speeds of a tie's jobs as multiples of the baseline's speed, or the time that they take.

    Empty if there is a baseline, but no ratio to it.
    """
    unit = unit_of_all([row.median_s for row in best])
    medians = sorted(row.median_s for row in best)
    # The times are compared as texts, so that times which look equal are shown once.
    lengths = list(dict.fromkeys(significant(unit.of(each)) for each in medians))
    times = lengths[0] if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    all_of_them = "both" if len(best) == 2 else "all"
    base = comparison.row(comparison.baseline)
    is_proven = len(comparison.equal) + 1 >= len(best)
    if base is None or base in best:
        verb = "with" if is_proven else "take"
        return f"{all_of_them} {verb} {times} {unit.name} a trial"
    factors = sorted(row.ratio.estimate for row in best if row.ratio)
    if not factors:
        return ""
    low, high = significant(1 / factors[-1], 2), significant(1 / factors[0], 2)
    span = low if low == high else f"{low} to {high}"
    against = show_time(base.median_s, _unit_beside(unit, base))
    verb = "" if is_proven else "are "
    return f"{all_of_them} {verb}{span} times {base.label} ({times} {unit.name} against {against})"


def _next_slower(comparison: Comparison, best: Row) -> Row | None:
    """The fastest job that is surely slower than this one; None if there is none."""
    return next((row for row in comparison.rows if best.label in row.faster), None)


def _unit_beside(unit: TimeUnit, row: Row) -> TimeUnit | None:
    """The unit in which the row's time is shown next to a time in `unit`.

    It is the same unit, unless the number would have more than four digits; None: the time's own.
    """
    return unit if unit.of(row.median_s) < 10_000 else None


def _loader_of_all(comparison: Comparison, best: list[Row]) -> str:
    """The loader that all jobs of the tie have, and some other job does not have; else empty.

    Also empty if the jobs' labels do not begin with the loader, or if the tie has the baseline.
    """
    loaders = {row.result.loader for row in best}
    if len(loaders) > 1 or all(row.result.loader in loaders for row in comparison.rows):
        return ""
    (loader,) = loaders
    is_prefix = all(row.label.startswith(f"{loader}, ") for row in best)
    base = comparison.row(comparison.baseline)
    return loader if is_prefix and base not in best else ""


def _limit(comparison: Comparison) -> str:
    """A sentence on the first job's share of the limit."""
    # If there is a single job, the first sentence has its share already.
    first = comparison.rows[0]
    if len(comparison.rows) == 1 or first.limit_fraction is None:
        return ""
    share = f"{show_fine_percent(first.limit_fraction)} of {describe_work(first.limit_origin)}"
    return f"{first.label} reaches {share}."


def _time(row: Row) -> str:
    """The median of a job with its interval and its share of the limit."""
    unit = unit_of(row.median_s)
    bounds = ""
    if row.interval_s and row.interval_s[1] < WIDEST_INTERVAL * row.interval_s[0]:
        low, high = row.interval_s
        bounds = f" (95 %: {significant(unit.of(low))} to {significant(unit.of(high))})"
    time = f"{show_time(row.median_s)} a trial{bounds}"
    if row.limit_fraction is None:
        return time
    return f"{time}, {show_fine_percent(row.limit_fraction)} of {describe_work(row.limit_origin)}"


def _bounds(ratio: Ratio, is_sure: bool) -> str:
    """The interval after a semicolon; empty if it is too wide, or contradicts the ranks."""
    # The ranks use the noise of all jobs, the interval only that of two: with three or four trials
    # a job may be surely faster although the interval includes 1.
    low, high = ratio.low, ratio.high
    if (
        not ratio.is_interval
        or not 0 < high < WIDEST_INTERVAL * low
        or (is_sure and low <= 1 <= high)
    ):
        return ""
    return f"; 95 %: {significant(low)} to {significant(high)}"


def _list(names: Sequence[str]) -> str:
    """The names in words; if they are many, the first ones and the number of the others."""
    if len(names) > MOST_NAMED:
        left = len(names) - MOST_NAMED + 1
        names = [*names[: MOST_NAMED - 1], f"{left} others"]
    if len(names) == 1:
        return names[0]
    separator = "; " if any("," in name for name in names) else ", "
    return f"{separator.join(names[:-1])} and {names[-1]}"


def shuffling_sentence(comparison: Comparison) -> str:
    """A sentence that names the fastest job of those that shuffle most, if a faster one shuffles
    less; else empty."""
    jobs = [row for row in comparison.rows if _shuffling(row.result)]
    results = [row.result for row in jobs]
    best = [row for row in jobs if not any(shuffles_less(row.result, each) for each in results)]
    if not best:
        return ""
    before = jobs[: jobs.index(best[0])]
    faster = [row for row in before if shuffles_less(row.result, best[0].result)]
    if not faster:
        return ""
    described = [(row.label, _shuffling(row.result)) for row in faster]
    names = ", ".join(f"{label} ({describe_shuffling(own)})" for label, own in described if own)
    verb = "shuffles" if len(faster) == 1 else "shuffle"
    # The jobs are sorted by their medians. A lower median alone does not prove that a job is
    # faster: there may be no ranks, or the jobs can't be told apart.
    is_sure = all(best[0].label in row.faster for row in best[1:]) and not comparison.undetermined
    quality = "is fastest" if is_sure else "has the lowest median"
    return f"{names} {verb} less; of the jobs that shuffle most, {best[0].label} {quality}."


def shuffles_less(result: Result, other: Result) -> bool:
    """True if a job shuffles less than another one, by more than chance; False if the shuffling of
    one of them is not known."""
    own, others = _shuffling(result), _shuffling(other)
    if not own or not others:
        return False
    ours, theirs = _chance(result), _chance(other)
    farther = max(LESS_FAR, BEYOND_CHANCE * math.hypot(ours.distance, theirs.distance))
    kept = max(MORE_KEPT, BEYOND_CHANCE * math.hypot(ours.neighbours_kept, theirs.neighbours_kept))
    return (
        own.distance < others.distance - farther
        or own.neighbours_kept > others.neighbours_kept + kept
        or (own.new_order_each_epoch is False and others.new_order_each_epoch is True)
    )


class _Chance(NamedTuple):
    """Standard deviations of the figures of a `Shuffling`, if the shuffle is uniform."""

    distance: float
    neighbours_kept: float


def _shuffling(result: Result) -> Shuffling | None:
    return result.shadow.shuffling if result.shadow else None


def _chance(result: Result) -> _Chance:
    """The standard deviations of a uniform shuffle of this job's samples."""
    epochs = result.shadow.epochs if result.shadow else 1
    samples = max(1, result.num_samples * max(1, epochs))
    # A user's own loader has batches of its own size, which is not known.
    size = result.params.get("batch_size")
    share = min(1.0, (size if isinstance(size, int) else 1) / max(1, result.num_samples))
    kept = 1 - (1 - share) ** 2
    return _Chance(
        # The variance of Spearman's footrule, (n + 1) (2 n² + 7) / 45 (Diaconis and Graham 1977),
        # for many samples and with the mean distance of n/3 as the unit.
        distance=math.sqrt(0.4 / samples),
        # There are as many independent draws as samples, and each keeps its neighbour with this
        # probability. If a batch has all samples, it keeps all, and the figure is always 0.
        neighbours_kept=math.sqrt(kept / (1 - kept) / samples) if kept < 1 else 0.0,
    )


def describe_shuffling(shuffling: Shuffling) -> str:
    """The quality of a shuffle in words: the distance, and the share of neighbours kept."""
    if shuffling.new_order_each_epoch is False and shuffling.distance > LESS_FAR:
        return "the same order in every epoch"
    kept = f"{100 * shuffling.neighbours_kept:.0f} % of neighbours stay together"
    return f"distance {shuffling.distance:.2f} of 1, {kept}"
