"""Write the verdict on a benchmark: at most three sentences, of which the first is the answer.

For example: `preload is fastest: 11.8 times raw (6.77 ms against 79.9 ms; 95 %: 11.4 to 12.2).
preload reaches 0.82 % of what 2 cores can gather in memory.`
"""

from __future__ import annotations

from collections.abc import Sequence

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
from fastloop.core.stats import Ratio
from fastloop.reporting.limit_text import describe_work
from fastloop.reporting.shuffling_quality import describe_shuffling, find_shuffling, shuffles_less
from fastloop.reporting.summary import Comparison, Row, ratio_by_round

MOST_SENTENCES = 3
"""Maximum number of sentences in a verdict; the last ones are dropped if there are more."""
MOST_NAMED = 4
"""Maximum number of jobs of a tie that are named."""


def verdict(comparison: Comparison) -> str:
    """The verdict on the jobs of a comparison.

    The verdict names the winner and the lead, the tie and its certainty, or the reason for no
    ranking. Sentences on weaker shuffling and on the machine's limit follow if there is room.
    """
    sentences = [
        *_outcome_sentences(comparison),
        shuffling_sentence(comparison),
        _limit_sentence(comparison),
    ]
    return " ".join([sentence for sentence in sentences if sentence][:MOST_SENTENCES])


def _outcome_sentences(comparison: Comparison) -> list[str]:
    """Sentences that name the winner, the tie, or the reason for no ranking."""
    rows = comparison.rows
    if len(rows) == 1:
        time = _describe_time(rows[0])
        return [f"{rows[0].label} takes {time}; there is no other job to compare it with."]
    if comparison.undetermined:
        lowest = f"The lowest median is {rows[0].label}'s, {show_time(rows[0].median_s)}"
        return [
            f"No ranking yet: {comparison.undetermined.rstrip('.')}.",
            f"{lowest}, the highest {rows[-1].label}'s, {show_time(rows[-1].median_s)}.",
        ]
    # The job of the lowest median has rank 1: no job is surely faster than it.
    tied = [row for row in rows if row.rank == rows[0].rank]
    if len(tied) == 1:
        return [_fastest_sentence(comparison, rows[0].label, rows[0])]
    # If all jobs of the tie have one loader, that loader is the answer, and the tie is between its
    # settings.
    if loader := _find_common_loader(comparison, tied):
        tie = _describe_tie(comparison, tied, prefix=f"{loader}, ")
        return [_fastest_sentence(comparison, loader, rows[0]), f"Its {tie}."]
    return _tie_sentences(comparison, tied)


def _fastest_sentence(comparison: Comparison, name: str, best: Row) -> str:
    """The sentence that calls `name`, which is the job `best` or its loader, the fastest.

    For example: `fast is fastest: 6 times slow (1 s against 6.1 s; 95 %: 5.4 to 6.9).` The speed of
    `best` is a multiple of the baseline's speed. If there is no baseline, or `best` is the
    baseline, the fastest job that is surely slower takes the baseline's place. The multiple is left
    out if there is no such job, or no ratio between the times of the two jobs.
    """
    slower = (row for row in comparison.rows if best.label in row.faster)
    other = _find_baseline_outside(comparison, [best]) or next(slower, None)
    # The other job's seconds / the best job's seconds say how many times as fast the best job is.
    look_share = comparison.look_share
    ratio = ratio_by_round(other.by_round, best.by_round, look_share) if other else None
    if other is None or ratio is None:
        return f"{name} is fastest."
    unit = unit_of_all([best.median_s, other.median_s])
    times = f"{show_time(best.median_s, unit)} against {_show_beside(unit, other)}"
    bounds = _describe_bounds(ratio, is_sure=best.label in other.faster)
    multiple = f"{significant(ratio.estimate)} times {other.label}"
    return f"{name} is fastest: {multiple} ({times}{bounds})."


def _tie_sentences(comparison: Comparison, tied: Sequence[Row]) -> list[str]:
    """Sentences on the jobs that share the first rank, and on their speeds.

    A single sentence says both if the tie is proven.
    """
    tie = _describe_tie(comparison, tied)
    is_proven = not _find_undecided(comparison, tied)
    speeds = _describe_speeds(comparison, tied, is_proven)
    if not speeds:
        return [f"{tie}."]
    if is_proven:
        return [f"{tie}, {speeds}."]
    return [f"{tie}.", f"{speeds[0].upper()}{speeds[1:]}."]


def _find_undecided(comparison: Comparison, tied: Sequence[Row]) -> list[Row]:
    """The jobs of a tie that are not surely as fast as its first job; a proven tie has none."""
    return [row for row in tied[1:] if row.label not in comparison.equal]


def _describe_tie(comparison: Comparison, tied: Sequence[Row], prefix: str = "") -> str:
    """The clause that says how certain the tie is: `a and b are equally fast (within 2 %)`.

    tied: the jobs that share the first rank, the fastest first. prefix: the beginning of their
    labels that is left out.
    """
    undecided = _find_undecided(comparison, tied)
    equal = [row for row in tied if row not in undecided]
    if not undecided:
        return f"{_join_labels(equal, prefix)} are equally fast (within 2 %)"
    hint = _hint_at_trials(comparison)
    if len(equal) == 1:
        return f"{_join_labels(tied, prefix)} can't be told apart yet ({hint})"
    return (
        f"{_join_labels(equal, prefix)} are equally fast (within 2 %), and "
        f"{_join_labels(undecided, prefix)} can't be told apart from them yet ({hint})"
    )


def _hint_at_trials(comparison: Comparison) -> str:
    """Ways to decide a tie: a number of trials, and trials=auto unless the sweep has used that."""
    enough = comparison.enough_trials
    ran = max(len(row.seconds) for row in comparison.rows)
    is_auto = comparison.look_share is not None
    parts = [f"after {ran} trials"] if is_auto else []
    if ran < enough < MOST_TRIALS:
        parts.append(f"about {enough:,} trials would")
    if not is_auto:
        parts.append(f"trials={AUTO} goes on until they are")
    return "; ".join(parts)


def _describe_speeds(comparison: Comparison, tied: Sequence[Row], is_proven: bool) -> str:
    """The clause with the speeds of a tie's jobs: `both 12 times raw (8.8 ms against 106 ms)`.

    If there is no baseline outside of the tie, the clause has the times alone: `both with 8.8 ms a
    trial`. Empty if there is such a baseline, but no ratio to its times. is_proven: True: the
    clause continues a sentence; False: the clause is a sentence, and has a verb.
    """
    jobs = "both" if len(tied) == 2 else "all"
    unit = unit_of_all([row.median_s for row in tied])
    times = f"{_show_range([unit.of(row.median_s) for row in tied])} {unit.name}"
    base = _find_baseline_outside(comparison, tied)
    if base is None:
        return f"{jobs} {'with' if is_proven else 'take'} {times} a trial"
    multiples = [1 / row.ratio.estimate for row in tied if row.ratio]
    if not multiples:
        return ""
    verb = "" if is_proven else "are "
    multiple = f"{_show_range(multiples, digits=2)} times {base.label}"
    return f"{jobs} {verb}{multiple} ({times} against {_show_beside(unit, base)})"


def _find_baseline_outside(comparison: Comparison, tied: Sequence[Row]) -> Row | None:
    """The row of the baseline; None if there is no baseline, or if it is one of the jobs `tied`."""
    base = comparison.row(comparison.baseline)
    return None if base in tied else base


def _find_common_loader(comparison: Comparison, tied: Sequence[Row]) -> str:
    """The loader of all jobs of a tie; empty if they have several.

    Also empty if the loader does not tell the tie from the rest: no other job has another loader,
    the tie has the baseline, or the labels of the jobs do not begin with the loader.
    """
    loader = tied[0].result.loader
    is_common = all(row.result.loader == loader for row in tied)
    is_prefix = all(row.label.startswith(f"{loader}, ") for row in tied)
    has_others = any(row.result.loader != loader for row in comparison.rows)
    has_baseline = any(row.label == comparison.baseline for row in tied)
    return loader if is_common and is_prefix and has_others and not has_baseline else ""


def shuffling_sentence(comparison: Comparison) -> str:
    """A sentence on jobs that shuffle less and have lower medians; empty if there are none.

    The jobs are compared with the job of the lowest median among the jobs that shuffle most. For
    example: `tar (the same order in every epoch) shuffles less; of the jobs that shuffle most, raw
    is fastest.`
    """
    found = [(row, find_shuffling(row.result)) for row in comparison.rows]
    shufflings = {row.label: shuffling for row, shuffling in found if shuffling}
    known = [row for row in comparison.rows if row.label in shufflings]
    most = [
        row for row in known if not any(shuffles_less(row.result, each.result) for each in known)
    ]
    # Each of two jobs may shuffle less than the other: one by its distance, one by its neighbours.
    if not most:
        return ""
    first = most[0]
    less = [row for row in known[: known.index(first)] if shuffles_less(row.result, first.result)]
    if not less:
        return ""
    names = ", ".join(f"{row.label} ({describe_shuffling(shufflings[row.label])})" for row in less)
    verb = "shuffles" if len(less) == 1 else "shuffle"
    # The jobs are sorted by their medians. A lower median alone does not prove that a job is
    # faster: there may be no ranks, or the jobs can't be told apart.
    is_sure = not comparison.undetermined and all(first.label in row.faster for row in most[1:])
    quality = "is fastest" if is_sure else "has the lowest median"
    return f"{names} {verb} less; of the jobs that shuffle most, {first.label} {quality}."


def _limit_sentence(comparison: Comparison) -> str:
    """A sentence on the share of the machine's limit that the first job reaches; empty if unknown.

    Also empty for a single job, because the first sentence of its verdict has the share.
    """
    first = comparison.rows[0]
    share = _describe_limit_share(first)
    return f"{first.label} reaches {share}." if share and len(comparison.rows) > 1 else ""


def _describe_limit_share(row: Row) -> str:
    """The job's share of the machine's limit: `61 % of what 2 cores can decode`; empty if unknown.

    The limit is the speed at which the machine does the same work without a loader.
    """
    if row.limit_fraction is None:
        return ""
    return f"{show_fine_percent(row.limit_fraction)} of {describe_work(row.limit_origin)}"


def _describe_time(row: Row) -> str:
    """The median time of a trial as text, with its interval and the job's share of the limit."""
    unit = unit_of(row.median_s)
    bounds = ""
    if row.interval_s and not _is_wide(*row.interval_s):
        low, high = row.interval_s
        bounds = f" (95 %: {significant(unit.of(low))} to {significant(unit.of(high))})"
    share = _describe_limit_share(row)
    return f"{show_time(row.median_s)} a trial{bounds}" + (f", {share}" if share else "")


def _describe_bounds(ratio: Ratio, is_sure: bool) -> str:
    """The ratio's interval after a semicolon; empty if it is too wide, or contradicts the ranks.

    Also empty if there are too few trials for an interval. is_sure: True if the ranks say that one
    of the two jobs is surely faster.
    """
    # The ranks use the noise of all jobs, the interval only that of two: with three or four trials
    # a job may be surely faster although the interval includes 1.
    contradicts = is_sure and ratio.low <= 1 <= ratio.high
    if not ratio.is_interval or _is_wide(ratio.low, ratio.high) or contradicts:
        return ""
    return f"; 95 %: {significant(ratio.low)} to {significant(ratio.high)}"


def _is_wide(low: float, high: float) -> bool:
    """True if an interval is so wide that it says nothing, or if its ends are not numbers."""
    return not 0 < high < WIDEST_INTERVAL * low


def _show_beside(unit: TimeUnit, row: Row) -> str:
    """The row's median time, to be read next to a time in `unit`.

    The time is in the same unit, unless the number would have more than four digits.
    """
    return show_time(row.median_s, unit if unit.of(row.median_s) < 10_000 else None)


def _show_range(values: Sequence[float], digits: int = 3) -> str:
    """The lowest and the highest value, such as `6.9 to 9`; a single number if both look equal."""
    low, high = significant(min(values), digits), significant(max(values), digits)
    return low if low == high else f"{low} to {high}"


def _join_labels(rows: Sequence[Row], prefix: str) -> str:
    """The labels of the jobs in words, each without `prefix`.

    If there are more than MOST_NAMED jobs, a number replaces the last labels.
    """
    names = [row.label.removeprefix(prefix) for row in rows]
    if len(names) > MOST_NAMED:
        left = len(names) - MOST_NAMED + 1
        names = [*names[: MOST_NAMED - 1], f"{left} others"]
    if len(names) == 1:
        return names[0]
    separator = "; " if any("," in name for name in names) else ", "
    return f"{separator.join(names[:-1])} and {names[-1]}"
