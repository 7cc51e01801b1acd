"""The outcome of `fastloop tune` for a job: `TuneOutcome`, and the text that is printed of it.

race_text.py writes the verdict and the table in this text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import LoadSummary
from fastloop.core.text import plain_reason, wrap
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.tune.race import RaceResult
from fastloop.tune.race_text import comparison_lines, verdict_text
from fastloop.tune.tune_file import TUNE_FILE, TuneFile

SETTING_REASON = re.compile(r"()([\w.]+)=([^\s:]+)(:? .+)")
"""The form of a reason that begins with a setting. Its groups: no text, the setting's name, its
value, and the rest of the reason."""
LACKING_REASON = re.compile(r"(\S+: )(\w+)=(\w+)( (?:has no such setting|reads a store, .+))")
"""The form of a reason that an option does not support a setting. Its groups: the text before the
option, the option's group, its name, and the rest of the reason."""
MOST_REASONS = 8
"""Maximum number of printed reasons for leaving out combinations."""


@dataclass(frozen=True, kw_only=True)
class TuneOutcome:
    """A finished race (the trials that find the fastest configuration), and facts about it."""

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
    seconds_used: float
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
    """The text that `fastloop tune` prints.

    Its parts are the load of the machine, the verdict, a table of the configurations that came
    closest, notes, and the number of combinations that were left out for each reason.
    """
    result, file = outcome.race, outcome.file
    head = f"{outcome.label}, objective {outcome.objective}: {len(result.seconds)} of "
    head += f"{file.combinations + 1:,} configurations ran, {outcome.trials} trials, "
    head += f"{outcome.seconds_used:.0f} s"
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
    # The present configuration is not among the combinations, but among the results. If a
    # configuration has failed in a later round, the results and the reasons have it.
    if rest := file.combinations + 1 - len({*result.seconds, *outcome.reasons}):
        notes.append(f"not run: {rest:,} that promise less, or that the budget has no room for")
    return "\n".join([*lines, "", *wrap(notes)])


def group_reasons(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Group reasons that differ only in a value.

    Options that lack the same setting are grouped as well. counts: number of combinations that are
    left out, by reason. Returns each reason with its number, the largest number first.
    """
    # Values are grouped first. Options that lack the same values of a setting then have lines that
    # differ only by the options' names.
    by_rest = _group(counts, SETTING_REASON)
    return _group(dict(by_rest), LACKING_REASON)


def _group(counts: Mapping[str, int], pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    """Join reasons into one line if they differ only in the `name=value` that the pattern finds."""
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


def names_of(changes: Sequence[Sequence[str]], present: str) -> list[str]:
    """The name of each configuration: its overrides, or `present` if it has none."""
    return [" ".join(change) or present for change in changes]
