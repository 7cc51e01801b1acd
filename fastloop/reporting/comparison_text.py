"""The text of a comparison of two sets of results: sentences, tables and other differences.

One set is the base, and the other set is new. `comparison_answer` says in sentences whether a job
has become slower, `format_changes` makes the tables of both times, and `other_differences` lists
the differences that no table has.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    TimeUnit,
    show_time,
    significant,
    unit_of_all,
)
from fastloop.core.result import Result, outcome
from fastloop.reporting.comparison import FEWEST_TRIALS, CostChange, Pairs, no_longer_finishes


def comparison_answer(pairs: Pairs, changes: Sequence[CostChange], fail_above: float) -> str:
    """Sentences that say whether a job has become slower by more than `fail_above` percent.

    Further sentences name the jobs that finish only in the base, and say how many changes could not
    be judged.
    """
    broken = [name for name, pair in pairs.items() if no_longer_finishes(*pair)]
    regressions = [each for each in changes if each.is_regression(fail_above)]
    unknown = [each for each in changes if each.ratio is None]
    sentences = [_broken_sentence(broken)] if broken else []
    if regressions:
        sentences += _slower_sentences(regressions, len(changes))
    # No change could be judged, so no job can be called fine.
    elif changes and len(unknown) == len(changes):
        sentences.append(f"No answer yet: each set needs {FEWEST_TRIALS} trials of a job or more.")
        return " ".join(sentences)
    elif changes and not broken:
        sentences += _fine_sentences(changes, fail_above)
    elif not broken:
        sentences.append("No answer: no job has finished in both sets.")
    if unknown:
        needed = f"each set needs {FEWEST_TRIALS} trials or more"
        verb = "is" if len(unknown) == 1 else "are"
        sentences.append(f"{len(unknown)} of {len(changes)} {verb} not judged: {needed}.")
    return " ".join(sentences)


def _broken_sentence(names: Sequence[str]) -> str:
    """The sentence that names the jobs that finish only in the base."""
    verb = "no longer finishes" if len(names) == 1 else "no longer finish"
    return f"{', '.join(names)} {verb}."


def _slower_sentences(regressions: Sequence[CostChange], compared: int) -> list[str]:
    """Sentences about the worst regression, and the number of regressions among all changes."""
    worst = max(regressions, key=lambda each: each.multiple)
    ratio = worst.ratio
    # A change without a ratio is not a regression.
    assert ratio is not None
    bounds = f"95 %: {significant(ratio.low)} to {significant(ratio.high)}"
    times = f"{significant(ratio.estimate)} times as long as in the base"
    answer = f"{worst.job} has become slower: {worst.benchmark} takes {times}"
    sentences = [f"{answer} ({describe_times(worst)}; {bounds})."]
    if len(regressions) > 1:
        sentences.append(f"In all {len(regressions)} of {compared} comparisons are slower.")
    return sentences


def _fine_sentences(changes: Sequence[CostChange], fail_above: float) -> list[str]:
    """Sentences that say that no job has become slower, and how many may have."""
    faster = sum(each.is_faster for each in changes)
    numbers = {"is faster" if faster == 1 else "are faster": faster}
    slower = sum(each.is_slower for each in changes)
    numbers |= {"is slower by less" if slower == 1 else "are slower by less": slower}
    counts = [f"{count} of {len(changes)} {words}" for words, count in numbers.items() if count]
    rest = f": {', '.join(counts)}" if counts else ""
    # Noise may hide a regression, so a regression that an interval allows must not be ruled out.
    known = [(each, each.ratio) for each in changes if each.ratio]
    open_ones = [each for each in known if each[1].high > 1 + fail_above / 100]
    surely = "surely " if open_ones or len(known) < len(changes) else ""
    sentences = [f"No job has {surely}become slower by more than {fail_above:g} %{rest}."]
    if open_ones:
        worst, ratio = max(open_ones, key=lambda each: each[1].high)
        bounds = f"{significant(ratio.low)} to {significant(ratio.high)} times as long (95 %)"
        sentences.append(
            f"{len(open_ones)} of {len(changes)} may have: {worst.benchmark} of {worst.job} takes "
            f"{bounds}."
        )
    return sentences


def describe_times(change: CostChange) -> str:
    """Both times of a change, the new one first: `12.1 us a sample against 9.3 us`."""
    unit = unit_of_all([change.base_cost, change.new_cost])
    base, new = show_time(change.base_cost, unit), show_time(change.new_cost, unit)
    return f"{new} a sample against {base}"


def format_changes(changes: Sequence[CostChange], fail_above: float) -> str:
    """The changes as text, with a table for each benchmark; empty if there are no changes.

    fail_above: a job that is slower by more percent, beyond noise, is a regression.
    """
    tables = []
    for benchmark in dict.fromkeys(change.benchmark for change in changes):
        shown = [change for change in changes if change.benchmark == benchmark]
        unit = unit_of_all(
            [each for change in shown for each in (change.base_cost, change.new_cost)]
        )
        title = f"{benchmark}, {unit.name} a sample"
        head = f"{title:<31}{'base':>9}{'new':>9}  new/base   95 %"
        rows = [_line(change, fail_above, unit) for change in shown]
        tables.append("\n".join([head, *rows]))
    return "\n\n".join(tables) + ("\n" if tables else "")


def _line(change: CostChange, fail_above: float, unit: TimeUnit) -> str:
    """A row of the table: job, both times, and their ratio with its interval."""
    shown = (significant(unit.of(each), 4) for each in (change.base_cost, change.new_cost))
    figures = "".join(f"{each:>9}" for each in shown) + "  "
    ratio = change.ratio
    if ratio is None:
        figures += f"{change.multiple:>8.3f}   too few trials"
    else:
        figures += f"{ratio.estimate:>8.3f}   {show_bounds(ratio)}"
        figures += f" {_direction(change, fail_above)}"
    # A name that is longer than its column gets a line of its own.
    name = f"{change.job:<31}" if len(change.job) < 31 else f"{change.job}\n{' ' * 31}"
    return name + figures.rstrip()


def _direction(change: CostChange, fail_above: float) -> str:
    """The word for a change beyond noise, in capitals for a regression; empty for other changes."""
    if change.is_regression(fail_above):
        return "SLOWER"
    if change.is_faster:
        return "faster"
    return "slower" if change.is_slower else ""


def show_bounds(ratio: stats.Ratio) -> str:
    """The bounds of a ratio's interval; words if the interval is too wide to say anything."""
    if ratio.high < WIDEST_INTERVAL * ratio.low:
        return f"{ratio.low:.3f} to {ratio.high:.3f}"
    return f"wider than a factor of {WIDEST_INTERVAL:g}"


def other_differences(pairs: Pairs, base: dict[str, Result], new: dict[str, Result]) -> list[str]:
    """Lines about differences that no table has.

    These are jobs that are in one set only, jobs that did not finish, and settings that differ.
    """
    lines = [f"only in base: {name}" for name in base if name not in new]
    lines += [f"only in new: {name}" for name in new if name not in base]
    for name, (before, after) in pairs.items():
        if not before.status == after.status == "FINISHED":
            label = "NO LONGER FINISHES" if no_longer_finishes(before, after) else "not compared"
            lines += [f"{label}: {name}: {_outcomes(before, after)}"]
    # Three settings are not listed: a folder does not matter, `cache` is one of the CONDITIONS in
    # comparison.py, and another number of trials changes only the certainty.
    differences = {
        f"{name} {before.params.get(name)} -> {after.params.get(name)}"
        for before, after in pairs.values()
        for name in before.params.keys() | after.params.keys()
        if before.params.get(name) != after.params.get(name)
        and name not in ("cache", "trials")
        and not name.endswith(".root")
    }
    return lines + [f"differs: {difference}" for difference in sorted(differences)]


def _outcomes(before: Result, after: Result) -> str:
    """The outcomes of a job in the base and in the new set; given once if they are equal."""
    base, new = _show_outcome(before), _show_outcome(after)
    return f"{base} in both" if base == new else f"base {base}, new {new}"


def _show_outcome(result: Result) -> str:
    """The status of a job and, if there is one, its reason."""
    return ": ".join(filter(None, outcome(result)))
