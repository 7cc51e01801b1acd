"""The findings about a script as the text that is printed."""

from __future__ import annotations

from fastloop.core.machine_load import describe_load
from fastloop.core.number_text import show_estimate, show_percent, show_time, significant
from fastloop.core.parts import Part
from fastloop.core.text import align, describe_exit, wrap
from fastloop.explain.attach.findings import LoopFindings, ScriptFindings, outside_s
from fastloop.explain.attach.loop_verdict import LEAST_TOLD, rank_rows
from fastloop.explain.model import LEAST_MISS_OF_SCRIPT, MOST_MISSED_OF_SCRIPT


def format_findings(findings: ScriptFindings) -> str:
    """The text that is printed: whether the machine was quiet, and each loop's verdict, parts,
    what-ifs and ranks."""
    load = wrap(describe_load(findings.machine_load, "run", "runs"))
    lines = [f"fastloop: {findings.command}", *load]
    for loop in findings.loops:
        sentences = ". ".join(loop.verdict.sentences) + "."
        lines += ["", f"verdict: {loop.verdict.word}"]
        lines += wrap([sentences])
        lines += wrap(describe_causes(loop))
        lines += ["", *align(part_rows(loop)), "", *_what_if_lines(loop)]
        if loop.ranks:
            lines += ["", *align(rank_rows(loop.ranks)), *wrap([f"{loop.ranks.sentence}."])]
    if unseen := describe_unseen(findings):
        lines += ["", *wrap(unseen)]
    if findings.seconds is not None:
        lines += ["", *wrap([describe_savings(findings, findings.seconds)])]
    return "\n".join(lines)


def describe_causes(loop: LoopFindings) -> list[str]:
    """A sentence for each cause: its measure, and the change that removes it."""
    return [f"Cause: {each.name}: {each.text}; {each.advice}." for each in loop.causes]


def describe_savings(findings: ScriptFindings, seconds: float) -> str:
    """The sentence about the script as a whole, which takes so many seconds: the time that the best
    predicted change of each loop saves, and the time outside of loops."""
    saved_s, places, is_bound = 0.0, [], False
    for loop in findings.loops:
        best = next((each for each in loop.what_ifs if each.gain is not None), None)
        if best and best.gain is not None:
            saved_s += best.gain * loop.wall_s
            is_bound = is_bound or best.is_bound
            gain = show_time(best.gain * loop.wall_s)
            places.append(f"{gain} at {loop.facts['place']} ({best.change.name})")
    outside = f"{show_time(outside_s(findings))} are outside of loops over DataLoaders"
    whole = f"Of the script's {show_time(seconds)},"
    if not places:
        return f"{whole} {outside}; no change of a loader is predicted to save time."
    most = "at most " if is_bound else ""
    return f"{whole} {most}{show_time(saved_s)} can be saved: {', '.join(places)}; {outside}."


def describe_unseen(findings: ScriptFindings) -> list[str]:
    """Sentences about loops that only began, and about DataLoaders that were made but not seen;
    empty if there are none."""
    names = ", ".join(findings.unseen)
    unseen = [f"DataLoaders over which no loop was seen: {names}."] if names else []
    return [*(f"{sentence}." for sentence in findings.begun), *unseen]


def describe_nothing(findings: ScriptFindings) -> str:
    """The lines that are printed instead of findings if there is no loop."""
    status, answer = findings.status, "no DataLoader was iterated over"
    if findings.begun:
        answer = "no loop over a DataLoader got beyond its first batch"
    if status:
        ended = describe_exit(status)
        way = f"failed ({ended})" if status > 0 else f"was {ended}"
        when = (
            "in the first batch of a loop over a DataLoader"
            if findings.begun
            else "before it had worked on a batch of a DataLoader"
        )
        answer = f"the script {way} {when}"
    lines = [f"fastloop: {answer}, nothing to explain", *describe_unseen(findings)]
    # The script's batches may come from a function of its own instead.
    if not status and len(lines) == 1:
        lines.append("A loop over other batches is seen if it is over fastloop.watch(batches).")
    return "\n".join(lines)


def part_rows(loop: LoopFindings) -> list[tuple[str, ...]]:
    """The parts of a loop's time as text, below a heading."""
    rows = [("part", "ms a batch", "share of the time")]
    for part, share in loop.shares.items():
        # A part of exactly zero was not seen in this loop, for example a transform inside decode.
        if share.value:
            each_ms = 1e3 * share.value * loop.seconds / loop.batches
            rows.append((str(part), significant(each_ms), show_estimate(share, show_percent)))
    return rows


def what_if_rows(loop: LoopFindings) -> list[tuple[str, ...]]:
    """The changes and their predicted gains as text, below a heading."""
    rows = [("what if", "predicted gain")]
    for each in loop.what_ifs:
        bound = "at most " if each.is_bound else ""
        gain = "not predicted" if each.gain is None else show_percent(each.gain)
        rows.append((each.change.name, bound + gain))
    return rows


def _what_if_lines(loop: LoopFindings) -> list[str]:
    if loop.facts.get("is_watched"):
        return ["it is no DataLoader: what happens in its next() is not seen, nothing is predicted"]
    if loop.model_ratio is None:
        return ["no batch was recorded as it was made, so nothing is predicted"]
    miss = round(100 * max(LEAST_MISS_OF_SCRIPT, abs(1 - loop.model_ratio)))
    if miss > 100 * (MOST_MISSED_OF_SCRIPT - 1):
        note = f"no gain is predicted: the model misses the loop as it is by {miss} %"
    elif loop.what_ifs:
        note = f"the predictions may be {miss} % off"
    else:
        note = "no other setting of its loader is predicted to save 2 % of its time"
    contention = loop.shares.get(Part.CONTENTION)
    # The model takes steps to last as long as beside the present workers.
    if contention and contention.value >= LEAST_TOLD:
        note += "; fewer workers would leave its step more cores, which no prediction contains: "
        note += "--try measures them"
    return [*(align(what_if_rows(loop)) if loop.what_ifs else []), *wrap([note])]
