"""Describe the result of a race in words: its verdict, and a table of its fastest configurations.

Every way of tuning prints both: `fastloop tune` for a job or a script, and `fastloop.tune`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.number_text import significant
from fastloop.core.stats import Ratio
from fastloop.core.text import align
from fastloop.tune.race import RaceResult

MOST_SHOWN = 8
"""Maximum number of configurations in the table, besides the present one."""
MOST_TIES = 4
"""Maximum number of printed ties of the winner."""


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
