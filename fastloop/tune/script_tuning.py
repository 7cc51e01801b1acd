"""Tune a DataLoader of a script: the steps of `fastloop tune --script train.py`.

The script runs twice. In the observed run, `fastloop attach` finds the script's loops over
DataLoaders. `choose_loop` then takes the loop in which another setting may save most, as
`attach --try` does, and `choose_settings` the settings to try. `run_script_race` runs the script
again, up to the first batch of that loop, and races the loop's DataLoader there against DataLoaders
with other settings (script_process.py).
`describe_tuned` makes the text and the patch that the command hands over.
"""

from __future__ import annotations

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
    find_most_to_gain,
    savable_s,
)
from fastloop.explain.attach.further_runs import read_last_line, run_again
from fastloop.explain.attach.script_patch import patch_call
from fastloop.explain.change import Change
from fastloop.tune.race import YOURS
from fastloop.tune.script_budget import FIRST_SHARE
from fastloop.tune.script_plan import (
    STEP_FILE,
    ScriptOutcome,
    ScriptPlan,
    read_outcome,
    write_plan,
)

CHILD_PROGRAM = str(Path(__file__).with_name("script_process.py"))
"""The program that runs the script for the second time, and the race at the loop's first batch."""
LATE_S = 30.0
"""A script that still runs this many seconds after its race should have ended is killed."""
POLL_S = 0.2
"""Seconds between two checks of the script's process."""


@dataclass(frozen=True, kw_only=True)
class TunedScript:
    """The result of tuning a script: a text to print, and a patch to write to a file."""

    text: str
    """The verdict, with the place of the call and its change."""
    patch: str
    """The recommended change for `git apply`; empty if there is none."""


def choose_loop(
    findings: ScriptFindings, arguments: Sequence[str], late_s: float | None = None
) -> LoopFindings:
    """Choose the loop over a DataLoader in which another setting of the DataLoader may save most.

    findings: those of the observed run. arguments: the script and its arguments. late_s: seconds
    after which the run was stopped; None if it ended before. Raises UsageError if the script has no
    such loop, or if several processes of distributed training run the loop.
    """
    loop = find_most_to_gain([each for each in findings.loops if each.facts.get("made_at")])
    if loop is None:
        raise UsageError(_describe_no_loop(findings, arguments, late_s))
    if loop.ranks or (loop.facts.get("group_size") or 1) > 1:
        raise UsageError(refuse_ranks(arguments))
    return loop


def _describe_no_loop(
    findings: ScriptFindings, arguments: Sequence[str], late_s: float | None
) -> str:
    """The message of the error for a script without a loop over a DataLoader.

    arguments and late_s: as in `choose_loop`.
    """
    script = " ".join(arguments[: 2 if arguments[0] == "-m" else 1])
    allowed = "a script that iterates over a DataLoader"
    if late_s is not None:
        ending = f"it was stopped after {late_s:.0f} s, {FIRST_SHARE:.0%} of the budget,"
        allowed = f"a larger budget=, or {allowed}"
    elif findings.status:
        ending = f"it failed (exit status {findings.status})"
    else:
        ending = "it ended"
    reason = f"{ending} before a batch of a DataLoader was seen"
    return f"--script {script}: {reason}; allowed: {allowed}"


def refuse_ranks(arguments: Sequence[str]) -> str:
    """The message of the error for a script of several ranks, with an alternative."""
    words = shlex.join(arguments)
    return (
        f"--script {words}: its ranks would have to race together, which tune can't let them do; "
        "allowed: a script of one process, also after torchrun --nproc_per_node=1; "
        f"`fastloop attach --try {words}` tries changes in all ranks"
    )


def choose_settings(loop: LoopFindings) -> dict[str, dict[str, Any]]:
    """Choose the configurations of the race: settings by the name of the configuration.

    The present configuration comes first. The name of another one is its change of the script's
    call, such as "num_workers=4, persistent_workers=True".
    """
    facts = loop.facts
    count = facts["num_workers"]
    present = _settings(
        count,
        is_persistent=bool(facts["persistent_workers"]),
        prefetch_factor=facts["prefetch_factor"] if count else None,
    )
    counts = _worker_counts(loop)
    tried = [each for count in counts for each in _settings_with_workers(loop, count)]
    if find_fastloader(loop):
        tried += [
            _settings(count, is_fastloader=True)
            for count in sorted({0, usable_cores()} & {0, *counts})
        ]
    changed = {find_change(each, present).name: each for each in tried}
    # The settings without a change are the present ones again.
    changed.pop("", None)
    return {YOURS: present, **changed}


def _settings(
    num_workers: int,
    *,
    is_persistent: bool = False,
    prefetch_factor: int | None = None,
    is_fastloader: bool = False,
) -> dict[str, Any]:
    """The settings of one configuration, by the names of DataLoader's arguments.

    The setting `fastloader`, which is no argument, is True if FastLoader takes the place of
    DataLoader.
    """
    return {
        "num_workers": num_workers,
        "persistent_workers": is_persistent,
        "prefetch_factor": prefetch_factor,
        "fastloader": is_fastloader,
    }


def _worker_counts(loop: LoopFindings) -> list[int]:
    """The numbers of workers to try, in ascending order, with the present number among them."""
    counts = {loop.facts["num_workers"], *choose_worker_counts(loop)}
    # If samples wait for I/O, more workers help. A race has time for more numbers of workers than
    # `attach --try`, which tries only a few changes.
    if loop.samples_wait:
        most = loop.facts["most_workers"]
        counts |= {each for each in WORKERS_FOR_WAITING if most is None or each <= most}
    return sorted(counts)


def _settings_with_workers(loop: LoopFindings, count: int) -> list[dict[str, Any]]:
    """The settings of a DataLoader with this number of workers that the race tries."""
    if not count:
        return [_settings(0)]
    # If the script makes a DataLoader for each pass over it, persistent workers can't stay from
    # pass to pass. They would in the race, which repeats epochs of one loader, so they are not
    # tried.
    is_made_anew = 1 < loop.passes == loop.loaders
    depths = {TORCH_PREFETCH, DEEP_PREFETCH}
    if loop.facts["num_workers"]:
        depths.add(loop.facts["prefetch_factor"] or TORCH_PREFETCH)
    return [
        _settings(count, is_persistent=is_persistent, prefetch_factor=depth)
        for is_persistent in ([False] if is_made_anew else [False, True])
        for depth in sorted(depths)
    ]


def find_change(settings: Mapping[str, Any], present: Mapping[str, Any]) -> Change:
    """Find the change of the script's call that turns the present settings into these."""
    changed = {
        name: value
        for name, value in settings.items()
        if name != "fastloader" and value != present[name]
    }
    # If the call has no prefetch_factor, torch's default is used, so the call need not name that
    # default.
    if changed.get("prefetch_factor") == TORCH_PREFETCH and not present["prefetch_factor"]:
        del changed["prefetch_factor"]
    return Change(settings=changed, is_fastloader=settings["fastloader"])


def run_script_race(
    loop: LoopFindings,
    settings: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str],
    *,
    end_ns: int,
    folder: Path,
    begin_step: Callable[[str], None],
) -> ScriptOutcome:
    """Run the script until its loop asks for its first batch, and race its DataLoader there.

    loop: the loop that is tuned. settings: the settings of each configuration, by its name.
    arguments: the script and its arguments. end_ns: time at which the race ends, by the clock of
    `now_ns`. folder: the folder for the plan, the outcome and the script's output. begin_step:
    called with the name of each configuration when a trial of it begins.

    Raises UsageError, with the last line that the script has printed, if the script ends, or has to
    be killed, before the race has an outcome.
    """
    plan = ScriptPlan(
        place=loop.facts["place"],
        made_at=loop.facts["made_at"],
        settings=settings,
        step_s=loop.step_ms / 1e3,
        samples_wait=loop.samples_wait,
        pass_s=loop.seconds / max(1, loop.passes),
        num_samples=loop.facts.get("num_samples"),
        end_ns=end_ns,
    )
    write_plan(folder, plan)
    output = folder / "output.txt"
    status = run_again(
        [sys.executable, CHILD_PROGRAM, str(folder), *arguments],
        Path.cwd(),
        output,
        lambda process: _follow(process, folder / STEP_FILE, end_ns, begin_step),
    )
    if outcome := read_outcome(folder):
        return outcome
    # run_again has killed a script that still ran when _follow returned.
    is_killed = status == -signal.SIGKILL
    # The file names the configuration that is measured, so it exists once the race has begun.
    if (folder / STEP_FILE).exists():
        how = "was still measuring" if is_killed else "ended while it measured"
    else:
        how = "had not reached" if is_killed else "ended before"
    last = read_last_line(output)
    raise UsageError(f"the script's second run {how} the loop at {plan.place}: {last}")


def _follow(
    process: subprocess.Popen[bytes], path: Path, end_ns: int, begin_step: Callable[[str], None]
) -> None:
    """Wait for the process, at most until LATE_S after `end_ns`, and report its steps.

    A step is the trial of one configuration. path: the file to which the process writes the name of
    the configuration. begin_step: called with each new name.
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
    loop: LoopFindings,
    settings: Mapping[str, Mapping[str, Any]],
    outcome: ScriptOutcome,
) -> TunedScript:
    """Describe the outcome of a script's race: the verdict, the change of the call, its patch.

    findings: the observed run. loop: the loop that was tuned. settings: as in `run_script_race`.
    """
    made_at = loop.facts["made_at"]
    lines = [outcome.text, "", f"{made_at}: the DataLoader of the loop at {loop.facts['place']}"]
    patch = ""
    if outcome.is_faster:
        change = find_change(settings[outcome.best], settings[YOURS])
        call = patch_call(loop.facts, change)
        patch = call.patch
        lines += [call.advice or f"change: {change.name}", *(f"{each}." for each in call.notes)]
    lines += [
        f"not tuned: {other.name}, in which up to {savable_s(other):.1f} s of "
        f"{other.seconds:.1f} s may be saved, as against {savable_s(loop):.1f} s"
        for other in findings.loops
        if other is not loop
    ]
    return TunedScript(text="\n".join(lines), patch=patch)
