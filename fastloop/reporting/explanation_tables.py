"""The report's tables of explained jobs: shares of the epoch, gains of changes, and the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.explanation import Explanation, LadderRow
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.result import Result
from fastloop.reporting.report_tables import NOTHING, Table
from fastloop.reporting.short_names import short_names

SHARES_LEGEND = (
    "By how much the epoch is longer for each part, as a share of it, with the 95 % interval of "
    "the median over rounds, or the range in parentheses. wait: what a perfect loader would save."
)
GAINS_LEGEND = (
    "Share of an epoch that a change saves: predicted by a model of the loader, and as it was when "
    "the change ran next to the job as it is."
)
PARTS_LEGEND = (
    "exposed: by how much a batch takes longer for the part. hidden: the rest of the part's work, "
    "done while the loop stepped or another worker worked; ?: unknown."
)


def shares_table(results: Sequence[Result]) -> Table | None:
    """The share of the epoch of each part, a row for each explained job; None if none was."""
    explained = explanations_of(results)
    # Jobs have different parts; a column for each that any job has, in the order of the ladders.
    parts = dict.fromkeys(row.rung for _, each in explained for row in each.ladder.rows)
    rows = []
    for label, explanation in explained:
        shares = {row.rung: row.share for row in explanation.ladder.rows}
        cells = [
            show_estimate(shares[part], show_percent) if part in shares else NOTHING
            for part in parts
        ]
        wait = show_estimate(explanation.ladder.wait_share, show_percent)
        rows.append((label, wait, *cells))
    head = ("", "wait", *parts)
    table = Table(heading="Parts of an epoch", head=head, rows=tuple(rows), legend=SHARES_LEGEND)
    return table if rows else None


def gains_table(results: Sequence[Result]) -> Table | None:
    """Predicted and realised gain of each change that was tried; None if none was."""
    rows = tuple(
        (
            f"{label}: {each.change}",
            NOTHING
            if each.predicted_gain is None
            else show_estimate(each.predicted_gain, show_percent),
            show_estimate(each.realised_gain, show_percent),
        )
        for label, explanation in explanations_of(results)
        for each in explanation.what_ifs
        if each.realised_gain
    )
    head = ("what if", "predicted gain", "realised gain")
    return Table(heading="What if", head=head, rows=rows, legend=GAINS_LEGEND) if rows else None


def parts_table(results: Sequence[Result]) -> Table | None:
    """Exposed and hidden milliseconds of each part of each explained job; None if none was."""
    rows = tuple(
        (f"{label}: {row.rung}", *_milliseconds(row))
        for label, explanation in explanations_of(results)
        for row in explanation.ladder.rows
    )
    head = ("part", "exposed, ms a batch", "hidden, ms a batch")
    return Table(heading="Ladder", head=head, rows=rows, legend=PARTS_LEGEND) if rows else None


def explanations_of(results: Sequence[Result]) -> list[tuple[str, Explanation]]:
    """Short names and explanations of the jobs that have one."""
    names = short_names(results)
    return [(names[each.name], each.explanation) for each in results if each.explanation]


def _milliseconds(row: LadderRow) -> tuple[str, str]:
    hidden = "?" if row.hidden_ms is None else significant(row.hidden_ms)
    return show_estimate(row.exposed_ms, significant), hidden
