"""The findings about a script: attach.json, and the text that is printed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from fastloop.core.cgroup import usable_cores
from fastloop.core.explanation import Cause, Verdict
from fastloop.core.machine_load import LoadSummary, describe_load
from fastloop.core.number_text import show_estimate, show_percent, show_time, significant
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.text import align, describe_exit, wrap
from fastloop.explain.attach.loop_causes import find_loop_causes
from fastloop.explain.attach.loop_verdict import (
    LEAST_TOLD,
    RankComparison,
    compare_ranks,
    judge_loop,
    rank_rows,
    steady_step_ms,
)
from fastloop.explain.attach.loop_what_ifs import (
    LoopWhatIf,
    cores_of_loading,
    cores_of_steps,
    predict_changes,
)
from fastloop.explain.attach.loops import Loop, share_of_parts, wait_share
from fastloop.explain.attach.step_lines import StepLines
from fastloop.explain.model import LEAST_MISS_OF_SCRIPT, MOST_MISSED_OF_SCRIPT, is_close
from fastloop.explain.verdict import verdict_lines

SCHEMA = 1
CROWDED = 1.1
"""Workers are said to share cores if loading, the step and other programs want this many times the
cores that there are."""
TOLD_CORES = 0.1
"""Other programs that use fewer cores are not mentioned."""
WAITING = 0.5
"""If there are no counters of the threads, samples count as waiting if making a batch keeps less
than this share of a core busy."""


@dataclass(frozen=True, kw_only=True)
class LoopFindings:
    """Findings about the loop over a DataLoader."""

    name: str
    facts: dict[str, Any]
    """The loader's settings, as recorded."""
    passes: int
    loaders: int
    """Number of DataLoaders that were iterated over: equal to `passes` if each pass has its own."""
    batches: int
    seconds: float
    """Time in the loop, of all ranks together."""
    step_ms: float
    """Median time of a step."""
    load_cores: float
    """Share of a core that the thread which makes batches keeps busy."""
    step_cores: float
    """Number of cores that a step keeps busy."""
    other_cores: float
    """Number of cores that other programs used while the script ran; 0 if it is not known."""
    samples_wait: bool
    """True if making a batch waits, for example for a disk or another machine, for longer than it
    computes. Many workers then help, because they wait at the same time."""
    verdict: Verdict
    shares: dict[Part, Estimate]
    """Each part's share of the loop's time."""
    model_ratio: float | None
    """The model's time of the loop as it is, without starts, divided by the measured time; None: no
    batch was recorded as it was made."""
    what_ifs: tuple[LoopWhatIf, ...]
    """The changes, sorted by predicted gain; none if the model misses the loop."""
    causes: tuple[Cause, ...]
    """The causes that were found, each with its measure and its advice."""
    step_lines: StepLines
    """The lines of the script on which the steps spend their time."""
    coverage: float
    """Share of the time of its passes that the lane of the loop accounts for, without gaps."""
    ranks: RankComparison | None
    """The comparison of the ranks; None if there is only one."""


@dataclass(frozen=True, kw_only=True)
class ScriptFindings:
    """Findings about a script."""

    command: str
    status: int | None
    """The exit status; negative: the signal that ended the script; None: it still runs."""
    loops: tuple[LoopFindings, ...]
    """The loops, the longest first."""
    begun: tuple[str, ...] = ()
    """A sentence about each loop of which only the beginning was seen."""
    unseen: tuple[str, ...] = ()
    """The names of DataLoaders that were made, but over which no loop has begun."""
    machine_load: LoadSummary | None = None
    """The load by other programs while the script ran."""
    seconds: float | None = None
    """Time from the start of the script to its end; None: it is not known."""


def describe_loop(loop: Loop) -> LoopFindings:
    """The findings about a loop."""
    shares = share_of_parts(loop)
    ratio, changes = predict_changes(loop, shares)
    return LoopFindings(
        name=loop.name,
        facts=loop.facts,
        passes=len(loop.passes),
        loaders=loop.loaders,
        batches=loop.batches,
        seconds=loop.seconds,
        step_ms=steady_step_ms(loop),
        load_cores=cores_of_loading(loop),
        step_cores=cores_of_steps(loop),
        other_cores=loop.other_cores,
        # Without the counters, a thread that waits for a core looks like one that sleeps:
        # the share of a core decides then.
        samples_wait=(
            loop.usage.is_mostly_idle if loop.usage.makes else cores_of_loading(loop) < WAITING
        ),
        verdict=judge_loop(loop, shares),
        shares=shares,
        model_ratio=ratio,
        what_ifs=changes,
        causes=find_loop_causes(loop, shares, do_workers_pay=_do_workers_pay(loop, ratio, changes)),
        step_lines=loop.step_lines,
        coverage=loop.coverage,
        ranks=compare_ranks(loop),
    )


def _do_workers_pay(loop: Loop, ratio: float | None, changes: tuple[LoopWhatIf, ...]) -> bool:
    """False if the loop has no workers, and the model predicts that none would save time."""
    is_predicted = ratio is not None and is_close(ratio, MOST_MISSED_OF_SCRIPT)
    has_gain = any("num_workers" in each.change.settings for each in changes)
    return not is_predicted or has_gain or loop.facts["num_workers"] > 0


def waiting_s(loop: LoopFindings) -> float:
    """Time in the loop outside of its steps."""
    return loop.seconds * wait_share(loop.shares).value


def to_json(findings: ScriptFindings) -> str:
    """The text of attach.json."""
    values = asdict(findings)
    for loop, written in zip(findings.loops, values["loops"], strict=True):
        # The file has only the name of each change.
        written["what_ifs"] = [
            {
                "change": each.change.name,
                "gain": each.gain,
                "is_bound": each.is_bound,
                "is_native": each.is_native,
            }
            for each in loop.what_ifs
        ]
    return json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n"


def format_findings(findings: ScriptFindings) -> str:
    """The text that is printed: whether the machine was quiet, and each loop's verdict, parts,
    what-ifs and ranks."""
    load = wrap(describe_load(findings.machine_load, "run", "runs"))
    lines = [f"fastloop: {findings.command}", *load]
    for loop in findings.loops:
        lines += ["", *verdict_lines(loop.verdict), *wrap(describe_causes(loop))]
        lines += ["", *align(part_rows(loop)), "", *_what_if_lines(loop)]
        if loop.ranks:
            lines += ["", *align(rank_rows(loop.ranks)), *wrap([f"{loop.ranks.sentence}."])]
    if unseen := describe_unseen(findings):
        lines += ["", *wrap(unseen)]
    if findings.seconds is not None:
        lines += ["", *wrap([describe_savings(findings, findings.seconds)])]
    return "\n".join(lines)


def outside_s(findings: ScriptFindings) -> float:
    """Time of the script outside of loops over DataLoaders; 0 if it is not known."""
    if findings.seconds is None:
        return 0.0
    # `seconds` is a sum over ranks, which run at the same time.
    in_loops_s = sum(loop.seconds / _num_ranks(loop) for loop in findings.loops)
    return max(0.0, findings.seconds - in_loops_s)


def describe_causes(loop: LoopFindings) -> list[str]:
    """A sentence for each cause: its measure, and the change that removes it."""
    return [f"Cause: {each.name}: {each.text}; {each.advice}." for each in loop.causes]


def describe_savings(findings: ScriptFindings, seconds: float) -> str:
    """The sentence about the script as a whole, which takes so many seconds: the time that the best
    predicted change of each loop saves, and the time outside of loops."""
    saved_s, places, is_bound = 0.0, [], False
    for loop in findings.loops:
        loop_s = loop.seconds / _num_ranks(loop)
        best = next((each for each in loop.what_ifs if each.gain is not None), None)
        if best and best.gain is not None:
            saved_s += best.gain * loop_s
            is_bound = is_bound or best.is_bound
            gain = show_time(best.gain * loop_s)
            places.append(f"{gain} at {loop.facts['place']} ({best.change.name})")
    outside = f"{show_time(outside_s(findings))} are outside of loops over DataLoaders"
    whole = f"Of the script's {show_time(seconds)},"
    if not places:
        return f"{whole} {outside}; no change of a loader is predicted to save time."
    most = "at most " if is_bound else ""
    return f"{whole} {most}{show_time(saved_s)} can be saved: {', '.join(places)}; {outside}."


def _num_ranks(loop: LoopFindings) -> int:
    return len(loop.ranks.ranks) if loop.ranks else 1


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


def _note_on_cores(loop: LoopFindings) -> str:
    """The end of the note if workers would have to share their cores; empty if some are free."""
    cores = usable_cores()
    wanted = _num_ranks(loop) * (loop.load_cores + loop.step_cores) + loop.other_cores
    has_workers = any(each.change.settings.get("num_workers") for each in loop.what_ifs)
    if loop.facts.get("num_workers") or not has_workers or wanted <= CROWDED * cores:
        return ""
    others = ""
    if loop.other_cores >= TOLD_CORES:
        others = f", and other programs {significant(loop.other_cores, 2)}"
    return (
        f"; workers would share {cores} cores with the step, which keeps "
        f"{significant(loop.step_cores, 2)} busy{others}: the predictions contain that"
    )


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
    elif loop.what_ifs:
        note += _note_on_cores(loop)
    return [*(align(what_if_rows(loop)) if loop.what_ifs else []), *wrap([note])]
