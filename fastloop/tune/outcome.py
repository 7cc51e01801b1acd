"""Describe the outcome of tuning: `TuneOutcome`, and the text and the table that are printed of it.

`fastloop.tune` and `fastloop tune --script` use the verdict and the table of a race, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.machine_load import LoadSummary, describe_load
from fastloop.core.number_text import significant
from fastloop.core.stats import Ratio
from fastloop.core.text import align, plain_reason, wrap
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.tune.race import RaceResult
from fastloop.tune.tune_file import TUNE_FILE, TuneFile

SETTING_REASON = re.compile(r"()([\w.]+)=([^\s:]+)(:? .+)")
"""A reason that begins with a setting and its value: text before it, name, value, rest."""
LACKING_REASON = re.compile(r"(\S+: )(\w+)=(\w+)( (?:has no such setting|reads a store, .+))")
"""A reason for leaving out an option that does not support a setting: text before the option, its
group, its name, rest."""
MOST_SHOWN = 8
"""Maximum number of configurations in the table, besides the present one."""
MOST_REASONS = 8
"""Maximum number of printed reasons for leaving out combinations."""
MOST_TIES = 4
"""Maximum number of printed ties of the winner."""


@dataclass(frozen=True, kw_only=True)
class TuneOutcome:
    """A finished race, with the reasons why other configurations were not in it."""

    race: RaceResult
    objective: str
    """The name of the cost that was minimized, see objective.py."""
    label: str
    """Names of the present job and its benchmark."""
    file: TuneFile
    """The plan, and the costs of passes."""
    reasons: Mapping[str, str]
    """The reasons why configurations have failed, by name."""
    peak_mib: Mapping[str, float]
    """Measured peaks of memory in MiB, by name of the winner or the present configuration."""
    unobserved: Sequence[str] = ()
    """Names of configurations without an observed peak, because no time was left."""
    seconds: float
    """Seconds spent, including those of interrupted sessions."""
    trials: int
    """Number of trials that ran."""
    larger_budget: str = "a larger budget"
    """A budget with which a race that had no time to confirm a gain can continue."""
    machine_load: LoadSummary | None = None
    """The load by other programs during the trials."""

    @property
    def is_faster(self) -> bool:
        """True if the winner's gain is confirmed, and it delivers the dataset's samples."""
        return self.race.is_faster and self.race.winner not in self.reasons

    @property
    def change(self) -> Change:
        """The recommended change of the present configuration; empty if nothing is faster."""
        names = names_of(self.file.changes, self.race.present)
        overrides = self.file.changes[names.index(self.race.winner)] if self.is_faster else ()
        return Change(overrides=tuple(overrides))

    def raise_if_failed(self) -> None:
        """Raise UsageError if the present configuration has failed."""
        if reason := self.reasons.get(self.race.present):
            raise UsageError(f"the present configuration has failed: {plain_reason(reason)}")


def format_outcome(outcome: TuneOutcome) -> str:
    """The text that `fastloop tune` prints: the load of the machine, the verdict, a table of the
    configurations that came closest, notes, and the numbers of combinations left out by reason."""
    result, file = outcome.race, outcome.file
    head = f"{outcome.label}, objective {outcome.objective}: {len(result.seconds)} of "
    head += f"{file.combinations + 1:,} configurations ran, {outcome.trials} trials, "
    head += f"{outcome.seconds:.0f} s"
    lines = [
        *wrap([*describe_load(outcome.machine_load), head]),
        "",
        *wrap([_answer(outcome)]),
        "",
    ]
    lines += comparison_lines(result)
    notes = [*_memory_lines(outcome)]
    notes += [f"no time left to observe the memory of {name}" for name in outcome.unobserved]
    notes += [f"failed: {name}: {reason}" for name, reason in outcome.reasons.items()]
    notes += file.notes
    left_out = group_reasons(file.left_out)
    notes += [f"left out: {count:,} x {reason}" for reason, count in left_out[:MOST_REASONS]]
    if more := sum(count for _, count in left_out[MOST_REASONS:]):
        notes.append(f"left out: {more:,} more, see {TUNE_FILE}")
    # The present configuration is not among the combinations, but among the results.
    if rest := file.combinations + 1 - len(result.seconds) - len(outcome.reasons):
        notes.append(f"not run: {rest:,} that promise less, or that the budget has no room for")
    return "\n".join([*lines, "", *wrap(notes)])


def group_reasons(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Group reasons that differ only in a value; returns each with its number, the largest first.

    Options that lack the same setting are grouped as well. counts: numbers by reason.
    """
    # Values are grouped first. Options that lack the same values of a setting then have lines that
    # differ only by the options' names.
    by_rest = _group(counts, SETTING_REASON)
    return _group(dict(by_rest), LACKING_REASON)


def _group(counts: Mapping[str, int], pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    """Join the reasons that differ only in `name=value`, as the pattern finds it, into one line."""
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    totals = Counter[tuple[str, str]]()
    for reason, count in counts.items():
        match = pattern.fullmatch(reason)
        before, name, value, after = match.groups() if match else ("", "", "", reason)
        groups.setdefault((before, after), {}).setdefault(name, []).append(value)
        totals[before, after] += count
    lines = []
    for key, count in totals.most_common():
        named = [f"{name}={','.join(values)}" for name, values in groups[key].items() if name]
        lines.append((key[0] + " ".join(named) + key[1], count))
    return lines


def _memory_lines(outcome: TuneOutcome) -> list[str]:
    """A line for each observed configuration: its peak of memory next to the forecast one."""
    names = names_of(outcome.file.changes, outcome.race.present)
    forecasts = dict(zip(names, outcome.file.forecast_mib, strict=True))
    lines = []
    for name, peak_mib in outcome.peak_mib.items():
        forecast = forecasts[name]
        said = "" if forecast is None else f", {forecast:,.0f} forecast"
        lines.append(f"peak of memory of {name}: {peak_mib:,.0f} MiB{said}")
    return lines


def _answer(outcome: TuneOutcome) -> str:
    """The verdict, and for an undecided race a sentence on how to decide it."""
    text = verdict_text(outcome.race, outcome.is_faster)
    if not outcome.race.is_undecided:
        return text
    # A race that has run to its end would repeat the same trials with a larger budget.
    if not outcome.race.is_unfinished:
        return f"{text} A quieter machine may tell."
    return f"{text} Nothing is lost: {outcome.larger_budget} and resume=last go on from here."


def verdict_text(result: RaceResult, is_faster: bool) -> str:
    """A sentence with the winner, its gain and its ties, or with the reason why there is none.

    is_faster: True if the winner is recommended.
    """
    if result.is_cut:
        return _describe_cut(result)
    if len(result.seconds) == 1:
        return "Nothing was tried beside yours: nothing else can run."
    if result.is_undecided:
        return f"No answer yet: {_describe_refutation(result)}: these rounds differ too much."
    if not is_faster or result.gain is None:
        # A gain of a few percent may be hidden by noise, so yours is not called as good as any.
        text = "Nothing else that was tried is faster by 2 % or more beyond noise"
        if result.winner == result.present:
            return f"{text}."
        return f"{text}: {_describe_refutation(result)}."
    ties = [name for name in result.ties if name != result.present]
    others = (
        f"not told apart from it: {_list_some(ties)}" if ties else "the others that ran are slower"
    )
    gain = _show_ratio(result.gain)
    rounds = len(result.confirming)
    return f"{result.winner}: {gain} times as fast as yours, in {rounds} fresh rounds; {others}."


def _describe_cut(result: RaceResult) -> str:
    """A sentence on a race that ended after too few rounds."""
    if len(result.seconds) == 1:
        return "No answer yet: the budget ended before anything was tried beside yours."
    # If the present configuration leads, this is the single other one: a budget without room for a
    # whole race has one other tried.
    others = [name for name in result.seconds if name != result.present]
    other = result.winner if result.winner in others else others[0]
    both = [result.seconds[result.present], result.seconds[other]]
    shared = sorted({*both[0]} & {*both[1]})
    gain = stats.ratio_or_range(*([each[number] for number in shared] for each in both))
    seen = f"{gain.estimate:.2f} times as fast as yours" if gain else "not measured beside yours"
    count = f"{len(shared)} round" + "s" * (len(shared) > 1)
    return f"No answer yet: {other} was {seen} in {count}, and the budget ended before more."


def _list_some(names: Sequence[str]) -> str:
    """The first MOST_TIES names, and the number of others."""
    more = len(names) - MOST_TIES
    shown = "; ".join(names[:MOST_TIES])
    return shown if more <= 0 else f"{shown}; and {more} more"


def _describe_refutation(result: RaceResult) -> str:
    """Text about a winner of the race if the fresh rounds have not confirmed its gain."""
    if result.gain is None:
        return f"{result.winner} seemed faster, and could not be confirmed"
    gain = _show_ratio(result.gain)
    return f"{result.winner} seemed faster, and in fresh rounds was {gain} times as fast"


def comparison_lines(result: RaceResult) -> list[str]:
    """The table of the configurations that came closest, as aligned lines of text."""
    return align(comparison_table(result))


def comparison_table(result: RaceResult) -> list[tuple[str, ...]]:
    """The table of the configurations that came closest, the fastest first, as rows of cells.

    Cells: name, number of rounds, median cost, and cost relative to the winner's. The first row is
    the head.
    """
    ranked = sorted(result.seconds, key=lambda name: _ratio_of(result, name))[:MOST_SHOWN]
    # The user's own configuration is shown even if it is far behind.
    if result.present not in ranked:
        ranked.append(result.present)
    rows = [("configuration", "rounds", "median", "times the winner's")]
    for name in ranked:
        costs = [*result.seconds[name].values()]
        ratio = result.compare(name)
        shown = _show_ratio(ratio) if ratio and name != result.winner else ""
        rows.append((name, str(len(costs)), significant(stats.median(costs)), shown))
    return rows


def _ratio_of(result: RaceResult, name: str) -> float:
    """Cost of the configuration relative to the winner's, by which the table is sorted."""
    # A configuration that shares no round with the winner can't be compared: it comes last.
    ratio = result.compare(name)
    return ratio.estimate if ratio else float("inf")


def _show_ratio(ratio: Ratio) -> str:
    """The ratio with its confidence interval in brackets; with too few rounds for an interval, with
    its range in parentheses."""
    ends = f"{ratio.low:.2f}, {ratio.high:.2f}"
    bounds = f"[{ends}]" if ratio.is_interval else f"({ends})"
    return f"{ratio.estimate:.2f} {bounds}"


def names_of(changes: Sequence[Sequence[str]], present: str) -> list[str]:
    """The name of each configuration: its overrides, or `present` if it has none."""
    return [" ".join(change) or present for change in changes]
