"""The findings about a script and its loops, as attach.json has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastloop.core.explanation import Cause, Verdict
from fastloop.core.machine_load import LoadSummary
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.attach.loop_causes import LoopEvidence, find_loop_causes
from fastloop.explain.attach.loop_model import cores_of_loading, cores_of_steps
from fastloop.explain.attach.loop_verdict import judge_loop
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf, predict_changes
from fastloop.explain.attach.loops import Loop, share_of_parts, steady_step_ms, wait_share
from fastloop.explain.attach.rank_comparison import RankComparison, compare_ranks
from fastloop.explain.attach.step_lines import StepLines
from fastloop.explain.model import MOST_MISSED_OF_SCRIPT, is_close

SCHEMA = 1
LEAST_BUSY_CORES = 0.5
"""If there are no counters of the threads, samples count as waiting if making a batch keeps less
than this share of a core busy."""


@dataclass(frozen=True, kw_only=True)
class LoopFindings:
    """Findings about the loop over a DataLoader."""

    name: str
    facts: dict[str, Any]
    """The recorded facts about the DataLoader, see loader_facts.py."""
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
    """The model's time of the loop as it is, without starts, divided by the measured time; None:
    there is no model, because no batch was recorded as it was made, or because the loop is over
    another iterable than a DataLoader."""
    what_ifs: tuple[LoopWhatIf, ...]
    """The changes, in the order of LoopPredictions."""
    causes: tuple[Cause, ...]
    """The causes that were found, each with its measure and its advice."""
    step_lines: StepLines
    """The lines of the script on which the steps spend their time."""
    coverage: float
    """Share of the wall time of the loop's passes for which there are recorded events."""
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


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The time of the script that the first change of a loop with a gain is predicted to save."""

    loop: LoopFindings
    what_if: LoopWhatIf
    seconds: float


def describe_loop(loop: Loop) -> LoopFindings:
    """The findings about a loop."""
    shares = share_of_parts(loop)
    predictions = predict_changes(loop, shares)
    do_workers_pay = predictions.do_workers_pay(loop.facts["num_workers"])
    evidence = LoopEvidence(loop=loop, shares=shares, do_workers_pay=do_workers_pay)
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
            loop.usage.is_mostly_idle
            if loop.usage.makes
            else cores_of_loading(loop) < LEAST_BUSY_CORES
        ),
        verdict=judge_loop(loop, shares),
        shares=shares,
        model_ratio=predictions.model_ratio,
        what_ifs=predictions.what_ifs,
        causes=find_loop_causes(evidence),
        step_lines=loop.step_lines,
        coverage=loop.coverage,
        ranks=compare_ranks(loop),
    )


def waiting_s(loop: LoopFindings) -> float:
    """Seconds in the loop outside of its steps."""
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
                "is_least": each.is_least,
                "basis": each.basis,
                "is_native": each.change.is_fastloader and bool(loop.facts.get("is_native")),
            }
            for each in loop.what_ifs
        ]
    return json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n"


def outside_s(findings: ScriptFindings) -> float:
    """Seconds of the script outside of loops over DataLoaders; 0 if they are not known."""
    if findings.seconds is None:
        return 0.0
    # `seconds` is a sum over ranks, which run at the same time.
    in_loops_s = sum(loop.seconds / num_ranks(loop) for loop in findings.loops)
    return max(0.0, findings.seconds - in_loops_s)


def find_savings(findings: ScriptFindings) -> list[Saving]:
    """The time that can be saved in each loop; loops without a prediction are left out."""
    savings = []
    for loop in findings.loops:
        # The changes are sorted by their gain, but a FastLoader that reads natively is the first.
        best = next((each for each in loop.what_ifs if each.gain is not None), None)
        if best and best.gain is not None:
            saved_s = best.gain * loop.seconds / num_ranks(loop)
            savings.append(Saving(loop=loop, what_if=best, seconds=saved_s))
    return savings


def find_most_to_gain(loops: Sequence[LoopFindings]) -> LoopFindings | None:
    """The loop in which another setting of its DataLoader may save most; None if there are no
    loops.

    If two loops may save equally much, for example nothing, it is the one that waits longer.
    """
    return max(loops, key=lambda loop: (savable_s(loop), waiting_s(loop)), default=None)


def savable_s(loop: LoopFindings) -> float:
    """Seconds that another setting of the loop's DataLoader may save in each rank.

    This is the greatest predicted saving, or the whole wait if the savings are not predicted.
    """
    ranks = num_ranks(loop)
    # A store is no setting of the DataLoader, and its gain is only an upper bound.
    changes = [each for each in loop.what_ifs if not each.is_bound]
    is_predicted = loop.model_ratio is not None and is_close(
        loop.model_ratio, MOST_MISSED_OF_SCRIPT
    )
    if not is_predicted or any(each.gain is None for each in changes):
        # Without a prediction, the whole wait may go.
        return waiting_s(loop) / ranks
    return max((each.gain or 0.0 for each in changes), default=0.0) * loop.seconds / ranks


def num_ranks(loop: LoopFindings) -> int:
    """Number of ranks that run the loop."""
    return len(loop.ranks.ranks) if loop.ranks else 1
