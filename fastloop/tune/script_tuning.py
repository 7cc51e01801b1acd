"""Tune a DataLoader of a script: the steps of `fastloop tune --script train.py`.

The script runs twice. In the observed run, `fastloop attach` finds its loops over DataLoaders, and
`choose_loop` takes the one that waits longest. `run_script_race` then runs the script again, up to
the first batch of that loop, and races its DataLoader against others there (script_process.py).
"""

from __future__ import annotations

import math
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastloop.core.cgroup import usable_cores
from fastloop.core.loading_settings import DEEP_PREFETCH, TORCH_PREFETCH, WORKERS_FOR_WAITING
from fastloop.core.spans import now_ns
from fastloop.core.types import UsageError
from fastloop.explain.attach.changes_to_try import choose_worker_counts, find_fastloader
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    outside_s,
    waiting_s,
)
from fastloop.explain.attach.further_runs import read_last_line, run_again
from fastloop.explain.attach.script_patch import patch_call
from fastloop.explain.change import Change
from fastloop.tune.budget import Spending, most_ending_s
from fastloop.tune.race import YOURS
from fastloop.tune.script_plan import (
    STEP_FILE,
    ScriptOutcome,
    ScriptPlan,
    read_outcome,
    write_plan,
)

CHILD_PROGRAM = str(Path(__file__).with_name("script_process.py"))
"""The program that runs the script for the second time, and the race at the loop's first batch."""
LEAST_BUDGET_S = 10.0
"""Minimum budget in seconds: it must have time for two runs of a script, each with an import of
torch, and for a race."""
FIRST_SHARE = 0.5
"""The observed run is stopped after this share of the budget, even if no batch has come by then:
the second run would take as long to reach its loop."""
LATE_S = 30.0
"""A script that still runs this many seconds after its race should have ended is killed."""
LOOK_SHARE, LEAST_LOOK_S, MOST_LOOK_S = 0.15, 3.0, 30.0
"""The observed run ends after this share of the budget, limited to these bounds in seconds."""
POLL_S = 0.2
"""Seconds between two checks of the script's process."""


@dataclass(frozen=True, kw_only=True)
class TunedScript:
    """The result of tuning a script, as the command prints and writes it."""

    text: str
    """The verdict, with the place of the call and its change."""
    patch: str
    """The recommended change for `git apply`; empty if there is none."""


def check_budget(budget_s: float) -> None:
    """Raise UsageError if the budget has no time for any script."""
    if budget_s < LEAST_BUDGET_S:
        raise UsageError(
            f"budget={budget_s:g}s is too short for two runs of a script; allowed: from "
            f"{LEAST_BUDGET_S:g}s"
        )


def check_rest(spending: Spending, findings: ScriptFindings, found: LoopFindings) -> None:
    """Raise UsageError, with a budget that suffices, if the second run has no time for a race.

    findings: the observed run. found: the loop that is tuned.
    """
    again_s = outside_s(findings)
    if again_s < spending.remaining_s:
        return
    # These modules import torch, which nothing else in the command needs.
    from fastloop.tune.loop_trials import BUDGET_MARGIN
    from fastloop.tune.script_race import forecast_race_s

    # Other loops may run before the one that is raced, so their time counts, too.
    until_race_s = max(again_s, (findings.seconds or 0.0) - found.seconds)
    needed_s = BUDGET_MARGIN * (until_race_s + forecast_race_s(found))
    reason = f"the script takes {again_s:.0f} s outside of its loops, and runs again"
    least_s = find_sufficient_s(spending, needed_s)
    raise UsageError(
        f"budget={spending.budget.seconds:g}s is too short: {reason}; allowed: from {least_s}s"
    )


def check_outcome(spending: Spending, outcome: ScriptOutcome) -> None:
    """Raise UsageError, with a budget that suffices, if there was no time for a race."""
    if outcome.needed_s is None:
        return
    least_s = find_sufficient_s(spending, outcome.needed_s)
    raise UsageError(f"budget={spending.budget.seconds:g}s is too short; allowed: from {least_s}s")


def find_sufficient_s(spending: Spending, needed_s: float) -> int:
    """Find a budget, in whole seconds, that suffices for the seconds spent and `needed_s` more."""
    given_s, spent_s = spending.budget.seconds or 0.0, spending.seconds_used
    least_s = math.floor(given_s) + 1
    # With a larger budget, the observed run takes longer, and more time is reserved for reporting
    # the outcome. So the budget is raised until it suffices for both.
    while True:
        longer_s = look_s(least_s) - look_s(given_s) + most_ending_s(least_s)
        wanted_s = math.ceil(spent_s + needed_s + longer_s)
        if wanted_s <= least_s:
            return least_s
        least_s = wanted_s


def look_s(budget_s: float) -> float:
    """Seconds after which the observed run of the script ends."""
    return min(MOST_LOOK_S, max(LEAST_LOOK_S, LOOK_SHARE * budget_s))


def choose_loop(
    findings: ScriptFindings, arguments: Sequence[str], late_s: float | None = None
) -> LoopFindings:
    """Choose the loop over a DataLoader that waits longest.

    arguments: the script and its arguments. late_s: seconds after which the script was stopped;
    None if it ended before. Raises UsageError if there is no such loop, or if several processes of
    distributed training run it.
    """
    script = " ".join(arguments[: 2 if arguments[0] == "-m" else 1])
    loops = [each for each in findings.loops if each.facts.get("made_at")]
    if not loops:
        way = f"it failed (exit status {findings.status})" if findings.status else "it ended"
        allowed = "a script that iterates over a DataLoader"
        if late_s is not None:
            way = f"it was stopped after {late_s:.0f} s, {FIRST_SHARE:.0%} of the budget,"
            allowed = f"a larger budget=, or {allowed}"
        reason = f"{way} before a batch of a DataLoader was seen"
        raise UsageError(f"--script {script}: {reason}; allowed: {allowed}")
    found = max(loops, key=waiting_s)
    if found.ranks or (found.facts.get("group_size") or 1) > 1:
        raise UsageError(refuse_ranks(arguments))
    return found


def refuse_ranks(arguments: Sequence[str]) -> str:
    """The message of the error for a script of several ranks, with an alternative."""
    words = shlex.join(arguments)
    return (
        f"--script {words}: its ranks would have to race together, which tune can't let them do; "
        "allowed: a script of one process, also after torchrun --nproc_per_node=1; "
        f"`fastloop attach --try {words}` tries changes in all ranks"
    )


def choose_settings(found: LoopFindings) -> dict[str, dict[str, Any]]:
    """Choose the configurations of the race: DataLoader's settings by name, the present one first.

    The setting `fastloader` is True if FastLoader takes the place of DataLoader.
    """
    facts = found.facts
    present = {
        "num_workers": facts["num_workers"],
        "persistent_workers": bool(facts["persistent_workers"]),
        "prefetch_factor": facts["prefetch_factor"] if facts["num_workers"] else None,
        "fastloader": False,
    }
    counts = {present["num_workers"], *choose_worker_counts(found)}
    # If samples wait for I/O, more workers help. A race has time for more numbers of workers than
    # `attach --try`, which tries only a few changes.
    if found.samples_wait:
        most = facts["most_workers"]
        counts |= {each for each in WORKERS_FOR_WAITING if most is None or each <= most}
    # If the script makes a DataLoader for each pass over it, persistent workers can't stay from
    # pass to pass. They would in the race, which repeats epochs of one loader, so they are not
    # tried.
    is_made_anew = 1 < found.passes == found.loaders
    without = {"persistent_workers": False, "prefetch_factor": None}
    every = [present]
    for count in sorted(counts):
        kept = [False, True] if count and not is_made_anew else [False]
        depths = {TORCH_PREFETCH, DEEP_PREFETCH, present["prefetch_factor"] or TORCH_PREFETCH}
        ahead = sorted(depths) if count else [None]
        every += [
            {
                "num_workers": count,
                "persistent_workers": persistent,
                "prefetch_factor": depth,
                "fastloader": False,
            }
            for persistent in kept
            for depth in ahead
        ]
    if find_fastloader(found):
        every += [
            {"num_workers": count, **without, "fastloader": True}
            for count in sorted({0, usable_cores()} & {*counts, 0})
        ]
    named = {find_change(each, present).name or YOURS: each for each in every}
    return {YOURS: present, **named}


def find_change(settings: Mapping[str, Any], present: Mapping[str, Any]) -> Change:
    """Find the change of the script's call that turns the present settings into these."""
    changed = {
        name: value
        for name, value in settings.items()
        if name != "fastloader" and value != present[name]
    }
    # torch's default of prefetch_factor is in effect anyway, so the call need not name it.
    if changed.get("prefetch_factor") == TORCH_PREFETCH and not present["prefetch_factor"]:
        del changed["prefetch_factor"]
    return Change(settings=changed, is_fastloader=settings["fastloader"])


def run_script_race(
    found: LoopFindings,
    settings: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str],
    *,
    end_ns: int,
    folder: Path,
    begin_step: Callable[[str], None],
) -> ScriptOutcome:
    """Run the script until its loop asks for its first batch, and race its DataLoader there.

    found: the loop. settings: those of each configuration, by its name. arguments: the script and
    its arguments. end_ns: time at which the race ends. folder: gets the plan, the outcome and the
    script's output.

    Raises UsageError, with the last line that the script has printed, if the script ends before its
    loop asks for a batch.
    """
    plan = ScriptPlan(
        place=found.facts["place"],
        made_at=found.facts["made_at"],
        settings=settings,
        step_s=found.step_ms / 1e3,
        samples_wait=found.samples_wait,
        pass_s=found.seconds / max(1, found.passes),
        num_samples=found.facts.get("num_samples"),
        end_ns=end_ns,
    )
    write_plan(folder, plan)
    output = folder / "output.txt"
    command = [sys.executable, CHILD_PROGRAM, str(folder), *arguments]
    status = run_again(
        command,
        Path.cwd(),
        output,
        lambda each: _follow(each, folder / STEP_FILE, end_ns, begin_step),
    )
    if outcome := read_outcome(folder):
        return outcome
    late = "had not reached" if status == -signal.SIGKILL else "ended before"
    place = found.facts["place"]
    last = read_last_line(output)
    raise UsageError(f"the script's second run {late} the loop at {place}: {last}")


def _follow(
    process: subprocess.Popen[bytes], path: Path, end_ns: int, begin_step: Callable[[str], None]
) -> None:
    """Wait for the process, and report the name of each configuration that it measures.

    path: the file to which the process writes the name of the configuration.
    """
    last = ""
    while now_ns() < end_ns + 1e9 * LATE_S:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return
        step = path.read_text(encoding="utf-8") if path.exists() else ""
        if step and step != last:
            last = step
            begin_step(step)


def describe_tuned(
    findings: ScriptFindings,
    found: LoopFindings,
    settings: Mapping[str, Mapping[str, Any]],
    outcome: ScriptOutcome,
) -> TunedScript:
    """Describe the outcome of a script's race: the verdict, the change of the call, its patch."""
    made_at = found.facts["made_at"]
    lines = [outcome.text, "", f"{made_at}: the DataLoader of the loop at {found.facts['place']}"]
    patch = ""
    if outcome.is_faster:
        change = find_change(settings[outcome.best], settings[YOURS])
        call = patch_call(found.facts, change)
        patch = call.patch
        lines += [call.advice or f"change: {change.name}", *(f"{each}." for each in call.notes)]
    others = [each for each in findings.loops if each is not found]
    lines += [
        f"not tuned: {each.name}, which waits {waiting_s(each):.1f} s of {each.seconds:.1f} s, "
        f"as against {waiting_s(found):.1f} s"
        for each in others
    ]
    return TunedScript(text="\n".join(lines), patch=patch)
