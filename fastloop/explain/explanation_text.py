"""Write a job's explanation as the text of explain.json, and as `fastloop explain` prints it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from fastloop.core.explanation import (
    Cause,
    Explanation,
    InstrumentedEpoch,
    Ladder,
    LadderRow,
    WhatIf,
)
from fastloop.core.load_text import describe_load
from fastloop.core.number_text import show_estimate, show_percent, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate, no_less_than_zero
from fastloop.core.text import align, wrap
from fastloop.explain.verdict import verdict_lines
from fastloop.reporting.limit_text import describe_work

SCHEMA = 3
"""Number of the format of explain.json."""
NO_PART = "no part of loading is known to take any time; explain.json has the figures"
"""Text in place of a ladder in which all parts but the step may be zero."""
LEAST_POSSIBLE_GAIN = 0.05
"""Share of an epoch. The last line is about the tried changes if none of them is the best. If none
can save this share, the line says how much they may save at most. If one may save it, the line says
that no gain is beyond noise."""


def to_json(explanation: Explanation) -> str:
    """The text of explain.json."""
    return json.dumps({"schema": SCHEMA, **asdict(explanation)}, indent=1) + "\n"


def format_explanation(explanation: Explanation, may_try: bool = True) -> str:
    """The printed text: machine load, verdict, ladder, causes, what-ifs, timeline and best command.

    The ladder is a table of the parts of an epoch, and a what-if is a change of the job. may_try:
    False if the settings allow no change to be tried (try=0 without what_if=).
    """
    ladder = explanation.ladder
    head = f"{explanation.name}, {explanation.benchmark}, device {explanation.device}: "
    head += f"{ladder.batches:,} batches an epoch, {explanation.rounds} rounds"
    load = describe_load(explanation.machine_load, "pass", "passes")
    lines = [*wrap(load), head, "", *verdict_lines(explanation.verdict)]
    lines += [*wrap([_limit_text(explanation)]), ""]
    # If all parts may be zero, their order in a table would only be noise.
    is_known = any(row.share.low > 0 for row in ladder.rows if row.rung is not Part.STEP)
    lines += ladder_lines(ladder) if is_known else [NO_PART]
    if explanation.causes:
        lines += ["", *_cause_lines(explanation.causes)]
    if explanation.what_ifs:
        lines += ["", *_what_if_lines(explanation.what_ifs)]
        ratio = significant(explanation.model_ratio)
        lines.append(f"the model gives {ratio} times the measured epoch of the job as it is")
    lines += ["", *wrap([_timeline_text(explanation.timeline)])]
    return "\n".join([*lines, "", _last_line(explanation, may_try)])


def _timeline_text(epoch: InstrumentedEpoch) -> str:
    """A line about the recorded epoch: its length, and the share of each activity of the loop."""
    shares = ", ".join(f"{part} {show_percent(share)}" for part, share in epoch.shares.items())
    length = f"{epoch.batches:,} batches took {significant(epoch.seconds)} s"
    text = f"timeline: a recorded epoch of {length}"
    return f"{text}; the recorded parts explain {100 * epoch.coverage:.1f} % of it: {shares}"


def _limit_text(explanation: Explanation) -> str:
    """A sentence about the rate of the loader alone, and the machine's limit for such work."""
    rate, limit = explanation.loader_samples_per_s, explanation.limit_samples_per_s
    text = f"Without steps the loader delivers {rate:,.0f} samples/s"
    if limit is None:
        return f"{text}; no limit is known for such work."
    work = describe_work(explanation.limit_origin)
    return f"{text}, {show_percent(rate / limit)} of {work} ({limit:,.0f})."


def ladder_lines(ladder: Ladder) -> list[str]:
    """The ladder as aligned lines of text."""
    return align(ladder_table(ladder))


def ladder_table(ladder: Ladder) -> list[tuple[str, ...]]:
    """The ladder as rows of cells; the first row is the head of the table."""
    rows = [("part", "hidden ms", "exposed ms a batch", "share of the epoch")]
    rows += [_ladder_row(row) for row in ladder.rows]
    # A part below zero is shown as zero. Only with such parts do the rows not add up to the epoch.
    # The sum is shown if a part is below zero by more than noise.
    if ladder.residue:
        rows.append(("sum", "", "", show_percent(ladder.explained)))
    return rows


def _ladder_row(row: LadderRow) -> tuple[str, ...]:
    """The cells of a part: its name, hidden and exposed milliseconds, and share of the epoch."""
    hidden = "?" if row.hidden_ms is None else significant(row.hidden_ms)
    exposed = show_estimate(no_less_than_zero(row.exposed_ms), significant)
    share = show_estimate(no_less_than_zero(row.share), show_percent)
    return str(row.rung), hidden, exposed, share


def _cause_lines(causes: Sequence[Cause]) -> list[str]:
    """Aligned lines, below a heading, that say which of the causes were found."""
    answers = {True: "yes", False: "no", None: "?"}
    rows = [("looked for", "found", "")]
    rows += [
        (each.name, answers[each.is_found], "; ".join(filter(None, (each.text, each.advice))))
        for each in causes
    ]
    return align(rows)


def _what_if_lines(what_ifs: Sequence[WhatIf]) -> list[str]:
    """Aligned lines, below a heading, with the changes and their gains."""
    rows = [("what if", "predicted gain", "realised gain")]
    for each in what_ifs:
        predicted, realised = _gain_text(each.predicted_gain), _gain_text(each.realised_gain)
        rows.append((each.change, predicted or "not predictable", realised or "not tried"))
    return align(rows)


def _gain_text(gain: Estimate | None) -> str:
    """The gain with its bounds; empty if `gain` is None."""
    return show_estimate(gain, show_percent) if gain else ""


def _last_line(explanation: Explanation, may_try: bool) -> str:
    """The command of the best change.

    Without a best change, the line says how much the tried changes may save, or why none was tried.
    """
    if explanation.best:
        # The command is not wrapped, so that it can be copied.
        return f"best: {explanation.best.command}"
    gains = [each.realised_gain for each in explanation.what_ifs if each.realised_gain]
    if not gains:
        reason = "no change seemed worth it or could run" if may_try else "try=0"
        return f"nothing was tried: {reason}"
    most = max(gain.high for gain in gains)
    if most < LEAST_POSSIBLE_GAIN:
        return f"nothing that was tried saves more than {show_percent(max(0.0, most))}"
    return f"nothing that was tried is beyond noise; it may save up to {show_percent(most)}"
