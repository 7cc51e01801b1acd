"""Format the findings about a script as the text that `fastloop attach` prints.

The page of the findings has some of the same sentences and tables. A loop's what-ifs are changes of
its DataLoader, each with the share of the loop's time that it is predicted to save, its gain.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core.cgroup import usable_cores
from fastloop.core.exit_status import describe_exit
from fastloop.core.explanation import Cause
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import QUIET_SHARE
from fastloop.core.number_text import show_estimate, show_percent, show_time, significant
from fastloop.core.parts import Part
from fastloop.core.text import align, printable_line, wrap
from fastloop.explain.attach.change_notes import OF_FORKS
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    find_savings,
    num_ranks,
    outside_s,
)
from fastloop.explain.attach.loop_causes import LEAST_OTHER_CORES
from fastloop.explain.attach.loop_verdict import LEAST_CONTENTION
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.attach.rank_comparison import rank_rows
from fastloop.explain.change import FASTLOADER
from fastloop.explain.model import LEAST_MISS_OF_SCRIPT, MOST_MISSED_OF_SCRIPT
from fastloop.explain.verdict import verdict_lines

CROWDED_BY_WORKERS = 1.1
"""Factor of the usable cores. If loading, the step and other programs together want more cores than
that, a note says that workers would share cores."""


def format_findings(findings: ScriptFindings) -> str:
    """The text that is printed: whether the machine was quiet, each loop, and the whole script."""
    # An argument of the script may have characters that a terminal would execute.
    lines = [f"fastloop: {printable_line(findings.command)}"]
    lines += wrap(describe_load(findings.machine_load, "run", "runs"))
    if findings.status:
        failure = _show_failure(findings.status)
        lines += wrap([f"The script {failure}: these figures end there."])
    for loop in findings.loops:
        lines += _loop_lines(loop)
    for sentences in (describe_unseen(findings), _describe_savings(findings)):
        if sentences:
            lines += ["", *wrap(sentences)]
    return "\n".join(lines)


def _loop_lines(loop: LoopFindings) -> list[str]:
    """The lines on a loop: its verdict, its causes, the parts of its time, its what-ifs and its
    ranks."""
    lines = ["", *verdict_lines(loop.verdict), *wrap(describe_causes(loop.causes))]
    lines += ["", *align(part_rows(loop)), "", *_what_if_lines(loop)]
    if loop.ranks:
        lines += ["", *align(rank_rows(loop.ranks)), *wrap([f"{loop.ranks.sentence}."])]
    return lines


def _show_failure(status: int) -> str:
    """The words for a failure with that exit status, such as "failed (...)".

    status: negative: the signal that ended the script.
    """
    ended = describe_exit(status)
    return f"failed ({ended})" if status > 0 else f"was {ended}"


def describe_causes(causes: Sequence[Cause]) -> list[str]:
    """A sentence for each cause: its measure, and the change that removes it."""
    heads = {True: "Cause", None: "Not known"}
    return [f"{heads[each.is_found]}: {each.name}: {each.text}; {each.advice}." for each in causes]


def _describe_savings(findings: ScriptFindings) -> list[str]:
    """A list with the sentence on the whole script: the predicted savings, and the time outside of
    loops. Of each loop the first change with a gain counts, see `find_savings`. Empty if the
    script's time is not known.
    """
    if findings.seconds is None:
        return []
    savings = find_savings(findings)
    outside = f"{show_time(outside_s(findings))} are outside of loops over DataLoaders"
    head = f"Of the script's {show_time(findings.seconds)},"
    if not savings:
        return [f"{head} {outside}; no change of a loader is predicted to save time."]
    # The sum of an upper and a lower bound is no bound, and is shown as approximate.
    bounds = {_show_bound(each.what_if) for each in savings} - {""}
    bound = bounds.pop() if len(bounds) == 1 else "about " if bounds else ""
    saved = show_time(sum(each.seconds for each in savings))
    places = ", ".join(
        f"{show_time(each.seconds)} at {each.loop.facts['place']} ({each.what_if.change.name})"
        for each in savings
    )
    # On a quiet machine the text on each loop has the error of the predictions already.
    is_quiet = all(_is_quiet(each.loop) for each in savings)
    most = max(_percent_off_under_load(each.loop) for each in savings)
    off = "" if is_quiet else f" (on this busy machine the predictions may be {most} % off)"
    return [f"{head} {bound}{saved} can be saved: {places}{off}; {outside}."]


def _show_bound(what_if: LoopWhatIf) -> str:
    """The words before a gain that is an upper or a lower bound; empty for other gains."""
    return "at most " if what_if.is_bound else "at least " if what_if.is_least else ""


def describe_unseen(findings: ScriptFindings) -> list[str]:
    """Sentences about loops that only began, and about DataLoaders without a loop; empty if there
    are no such loops or DataLoaders."""
    sentences = [f"{sentence}." for sentence in findings.begun]
    if findings.unseen:
        names = ", ".join(findings.unseen)
        sentences.append(f"DataLoaders over which no loop was seen: {names}.")
    return sentences


def describe_nothing(findings: ScriptFindings) -> str:
    """The lines that are printed instead of findings if there is no loop."""
    if findings.status:
        when = (
            "in the first batch of a loop over a DataLoader"
            if findings.begun
            else "before it had worked on a batch of a DataLoader"
        )
        answer = f"the script {_show_failure(findings.status)} {when}"
    elif findings.begun:
        answer = "no loop over a DataLoader got beyond its first batch"
    else:
        answer = "no DataLoader was iterated over"
    lines = [f"fastloop: {answer}, nothing to explain", *describe_unseen(findings)]
    # The script's batches may come from a function of its own instead.
    if not findings.status and len(lines) == 1:
        lines.append("A loop over other batches is seen if it is over fastloop.watch(batches).")
    return "\n".join(lines)


def part_rows(loop: LoopFindings) -> list[tuple[str, ...]]:
    """The rows of the table of a loop's parts, the heading first."""
    rows = [("part", "ms a batch", "share of the time")]
    for part, share in loop.shares.items():
        # A share of exactly zero means that the part was not recorded in this loop. For example,
        # the time of a transform may be a part of decode.
        if share.value:
            each_ms = 1e3 * share.value * loop.seconds / loop.batches
            rows.append((str(part), significant(each_ms), show_estimate(share, show_percent)))
    return rows


def what_if_rows(loop: LoopFindings) -> list[tuple[str, ...]]:
    """The rows of the table of changes and their predicted gains, the heading first."""
    rows = [("what if", "predicted gain")]
    for each in loop.what_ifs:
        gain = "not predicted" if each.gain is None else show_percent(each.gain)
        rows.append((each.change.name, _show_bound(each) + gain))
    return rows


def _what_if_lines(loop: LoopFindings) -> list[str]:
    """The lines of the table of changes, with notes on the predictions below."""
    if loop.facts.get("is_watched"):
        reason = "it is not a DataLoader: what happens in its next() is not seen"
        return [f"{reason}, so nothing is predicted"]
    if loop.model_ratio is None:
        return ["no batch was recorded as it was made, so nothing is predicted"]
    rows = align(what_if_rows(loop)) if loop.what_ifs else []
    cautions = [OF_FORKS] if any(each.change.forks_workers for each in loop.what_ifs) else []
    return [*rows, *wrap([*_describe_bases(loop), *cautions, _note_on_predictions(loop)])]


def _describe_bases(loop: LoopFindings) -> list[str]:
    """Sentences on FastLoader: the evidence for its gain, or the reason why none is predicted."""
    bases = [each for each in loop.what_ifs if each.basis]
    return [
        f"{FASTLOADER} is not predicted: {each.basis}."
        if each.gain is None
        else f"{FASTLOADER} is predicted to save at least that: {each.basis}."
        for each in bases
    ]


def _note_on_predictions(loop: LoopFindings) -> str:
    """The note on a loop with a model: why nothing is predicted, or how far the gains may be off,
    and how workers change the cores of the step."""
    miss = _percent_off_if_quiet(loop)
    is_predicted = any(each.gain is not None for each in loop.what_ifs)
    if miss > 100 * (MOST_MISSED_OF_SCRIPT - 1):
        note = f"no gain is predicted: the model misses the loop as it is by {miss} %"
    elif is_predicted:
        note = _describe_error(loop)
    else:
        note = "no other setting of its loader is predicted to save 2 % of its time"
    contention = loop.shares.get(Part.CONTENTION)
    # The model assumes that steps last as long as they do beside the present workers.
    if contention and contention.value >= LEAST_CONTENTION:
        return (
            f"{note}; fewer workers would leave its step more cores, which no prediction contains: "
            "--try measures them"
        )
    if is_predicted and _would_share_cores(loop):
        return f"{note}; {_describe_shared_cores(loop)}"
    return note


def _describe_error(loop: LoopFindings) -> str:
    """The words on how far the predicted gains may be off."""
    miss = _percent_off_if_quiet(loop)
    if _is_quiet(loop):
        return f"the predictions may be {miss} % off"
    cores, wider = usable_cores(), _percent_off_under_load(loop)
    used = f"other programs used {significant(loop.other_cores, 2)} of {cores} cores"
    if wider >= 100:
        return (
            f"the predictions tell little, as {used}; on a quiet machine they may be {miss} % off"
        )
    return (
        f"the predictions may be {wider} % off, {miss} % on a quiet machine: {used}, and may use "
        "fewer or more next time"
    )


def _is_quiet(loop: LoopFindings) -> bool:
    """True if other programs hardly used the cores while the loop ran."""
    return loop.other_cores <= QUIET_SHARE * usable_cores()


def _percent_off_if_quiet(loop: LoopFindings) -> int:
    """Percentage by which predictions for a loop with a model may be off on a quiet machine."""
    assert loop.model_ratio is not None
    return round(100 * max(LEAST_MISS_OF_SCRIPT, abs(1 - loop.model_ratio)))


def _percent_off_under_load(loop: LoopFindings) -> int:
    """Percentage by which predictions for a loop with a model may be off on a machine that is as
    busy as during the run."""
    # If the other programs end, the loop gets their share of the cores. They may also take more
    # cores, and the loop then loses as much.
    return _percent_off_if_quiet(loop) + round(100 * loop.other_cores / usable_cores())


def _would_share_cores(loop: LoopFindings) -> bool:
    """True if a listed change gives workers to a loop without workers, and they, the step and other
    programs together want more cores than there are."""
    gets_workers = any(each.change.settings.get("num_workers") for each in loop.what_ifs)
    wanted = num_ranks(loop) * (loop.load_cores + loop.step_cores) + loop.other_cores
    is_crowded = wanted > CROWDED_BY_WORKERS * usable_cores()
    return gets_workers and not loop.facts.get("num_workers") and is_crowded


def _describe_shared_cores(loop: LoopFindings) -> str:
    """The words on workers that would share cores with the step and other programs."""
    others = ""
    if loop.other_cores >= LEAST_OTHER_CORES:
        others = f", and other programs {significant(loop.other_cores, 2)}"
    return (
        f"workers would share {usable_cores()} cores with the step, which keeps "
        f"{significant(loop.step_cores, 2)} busy{others}: the predictions contain that"
    )
