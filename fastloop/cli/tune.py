"""fastloop tune: the fastest settings for a job, within a budget.

    fastloop tune [budget=5min] [space="<setting>=<value>,<value> ..."]
                  [objective=epoch] [memory_limit_mib=<MiB>] [resume=last]
                  [dataset=<dataset>] [loader=<loader>] [<setting>=<value> ...]
    fastloop tune [budget=5min] --script [-m] <script> [its arguments]

Takes the arguments of `fastloop run` for one job, your present one. It races other
loaders and settings against it, each trial in a fresh process and in interleaved
rounds, and confirms the winner by rounds that took no part in choosing it. It prints

- the gain with its 95 % interval, or that nothing is faster beyond noise;
- the command line, and the folder that `-cd <folder> experiment=tuned` takes;
- code to paste, if the loader has some.

budget=     upper limit of the cost: a time (300s, 5min, 1h), a number of trials
            (60trials), or a share of the trials that measuring every candidate
            takes (10%)
space=      the values to try, in Hydra's syntax:
            space="num_workers=0,2 loader=raw,fastloop"
objective=  the quantity to optimize: epoch (its seconds), samples_per_s, first_batch
            (seconds until it arrives), exposed_wait (seconds of an epoch in which no
            step runs for want of a batch)
memory_limit_mib=
            configurations with a higher forecast peak of memory are not run

After an interruption, the same command with resume=last continues.

With --script it tunes a DataLoader of a script, which is not changed. The script runs
twice. The first run is observed, and ends after up to 30 s. The second one ends at the
first batch of the loop in which other settings may save most; there, other settings of
its DataLoader race, with a step as long as the script's. The answer names the line of
the call, and tune.patch changes it, by `git apply`. For a script of one rank, the command
may be torchrun --nproc_per_node=1 <script>: the script then runs without torchrun.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.cli.script_command import (
    explain_no_script,
    explain_not_python,
    find_command,
    read_torchrun,
    without_python,
)
from fastloop.config.command_line import read_command_line, refuse_several
from fastloop.config.compose import (
    compose_all,
    compose_changed,
    compose_requests,
    usage_errors,
)
from fastloop.config.hydra_launcher import refuse_launcher
from fastloop.config.tune_space import read_space, split_arguments
from fastloop.config.write_experiment import experiment_yaml
from fastloop.core.atomic_files import write_text
from fastloop.core.outputs_folder import make_sweep_folder, outputs_folder, remove_unused
from fastloop.core.text import plain_reason
from fastloop.core.types import JobFailed, MachineBusy, UsageError
from fastloop.processes.command_endings import exit_on_system_error, print_ending
from fastloop.processes.signals import handle_signals, restore_default_signals
from fastloop.sweep.request import JobRequest

if TYPE_CHECKING:
    from fastloop.explain.attach.findings import ScriptFindings
    from fastloop.trial.job import Job
    from fastloop.tune.budget import Spending
    from fastloop.tune.outcome import TuneOutcome
    from fastloop.tune.planning import TuneSettings
    from fastloop.tune.tune_file import TuneFile

SCRIPT, PATCH = "--script", "tune.patch"
LAUNCHERS = {
    "accelerate",
    "deepspeed",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "lightning",
    "fabric",
}
"""Commands and modules, besides torchrun, that start a script in several processes."""
NOTHING_TO_RESUME = "no earlier tuning has finished a trial; this one starts again"
SEVERAL = "tune takes one job, the present one: {}; space= names what else is tried"
"""Message for a command line that makes several jobs; {} stands for its overrides."""


def main() -> None:
    """Print the tuned settings; exits with 1 and one line on failure."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    if SCRIPT in sys.argv[1:]:
        place = sys.argv.index(SCRIPT)
        _tune_script(sys.argv[1:place], sys.argv[place + 1 :])
        return
    given, sys.argv[1:] = split_arguments(sys.argv[1:])
    requests: list[JobRequest] = []
    try:
        refuse_several(sys.argv[1:], SEVERAL)
        settings = _check_settings(given)
        requests = compose_all(
            refuse_launcher("tune"), lambda _: f"1 job is tuned within budget={given['budget']}"
        )
        if requests:
            _tune(requests, settings, given)
    except (UsageError, MachineBusy, JobFailed) as error:
        sys.exit(plain_reason(str(error)))
    finally:
        restore_default_signals()
        for request in requests[:1]:
            remove_unused(request.sweep_folder)


def _tune_script(words: list[str], arguments: list[str]) -> None:
    """Print the tuned settings of a script's DataLoader; exits with 1 and one line on failure.

    words: the arguments before --script. arguments: the script with its arguments.
    """
    from fastloop.tune.budget import parse_budget
    from fastloop.tune.script_budget import check_budget
    from fastloop.tune.script_tuning import refuse_ranks

    try:
        given, left = split_arguments(words)
        budget_s = parse_budget(given["budget"]).seconds
        usual, _ = split_arguments([f"budget={given['budget']}"])
        if left or budget_s is None or given != usual:
            raise UsageError(f"tune {shlex.join(words)} {SCRIPT}: allowed: only budget=, a time")
        # The command is checked before the script runs. A later error would be printed with its
        # traceback.
        command = f"tune {SCRIPT}"
        check_budget(budget_s)
        arguments = without_python(arguments)
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise UsageError(f"tune {refuse_ranks(arguments)}")
        arguments = find_command(_enter_only_rank(arguments))
        reason = explain_no_script(command, arguments)
        if not reason and arguments[0] != "-m":
            reason = explain_not_python(command, arguments[0])
        if reason:
            raise UsageError(reason)
        _tune_loop_of_script(budget_s, arguments)
    except (UsageError, JobFailed) as error:
        sys.exit(plain_reason(str(error)))
    finally:
        restore_default_signals()


def _enter_only_rank(arguments: list[str]) -> list[str]:
    """The script's words in a torchrun command with one rank; other words are returned unchanged.

    This process becomes that rank: it sets the environment variables that torchrun would set.
    Raises UsageError for several ranks, and for other launchers.
    """
    from fastloop.processes.torchrun_env import make_rank_environment
    from fastloop.tune.script_tuning import refuse_ranks

    is_module = arguments[:1] == ["-m"]
    name = "".join(arguments[1:2]) if is_module else Path("".join(arguments[:1])).name
    torchrun = read_torchrun(arguments)
    if name in LAUNCHERS or (torchrun and not torchrun.is_single):
        raise UsageError(f"tune {refuse_ranks(arguments)}")
    if not torchrun:
        return arguments
    # Both runs of the script inherit these variables.
    os.environ.update(make_rank_environment())
    return torchrun.script


def _tune_loop_of_script(budget_s: float, arguments: list[str]) -> None:
    """Observe the script, race settings of one DataLoader, and print the fastest settings.

    It is the DataLoader of the loop in which other settings may save most.
    """
    from fastloop.core.machine_counters import process_begun_ns
    from fastloop.explain.attach.launch import make_record_folder
    from fastloop.sweep.progress import share_reports
    from fastloop.tune import script_budget, script_tuning
    from fastloop.tune.budget import Spending, TuneBudget

    begun_ns = process_begun_ns()
    spending = Spending(budget=TuneBudget(seconds=budget_s), begun_ns=begun_ns)
    records = make_record_folder()
    try:
        limit_s = script_budget.FIRST_SHARE * budget_s
        findings, run_s = _observe_script(arguments, records, budget_s, limit_s)
        late_s = limit_s if run_s >= limit_s else None
        loop = script_tuning.choose_loop(findings, arguments, late_s)
        spending.ending_s = spending.find_ending_s()
        script_budget.check_rest(spending, findings, loop)
        settings = script_tuning.choose_settings(loop)
        end_ns = begun_ns + int(1e9 * (budget_s - spending.ending_s))
        with share_reports("tune", spending.share_used) as begin_step:
            outcome = script_tuning.run_script_race(
                loop, settings, arguments, end_ns=end_ns, folder=records, begin_step=begin_step
            )
        script_budget.check_outcome(spending, outcome)
        tuned = script_tuning.describe_tuned(findings, loop, settings, outcome)
    finally:
        shutil.rmtree(records, ignore_errors=True)
    print(f"\n{tuned.text}")
    if tuned.patch:
        _write_patch(tuned.patch)


def _observe_script(
    arguments: list[str], records: Path, budget_s: float, limit_s: float
) -> tuple[ScriptFindings, float]:
    """Observe a run of the script. Returns (the findings, the seconds of the run).

    records: the folder to which the script's processes write. budget_s: the whole budget.
    limit_s: approximate upper limit for the time of the run.
    """
    from fastloop.core.spans import now_ns, seconds_between
    from fastloop.explain.attach.early_stop import EarlyStop, ask_for_stop
    from fastloop.explain.attach.explain_script import explain_script
    from fastloop.explain.attach.launch import run_script
    from fastloop.tune.script_budget import look_s

    ask_for_stop(records, EarlyStop(seconds=look_s(budget_s)))
    start_ns = now_ns()
    ended_by: list[int] = []
    status = run_script(arguments, records, limit_s=limit_s, note_end=ended_by.append)
    # A signal has ended the run. The script has received it, too, but its exit status may not show
    # that.
    if ended_by:
        print_ending(ended_by[0])
        sys.exit(128 + ended_by[0])
    handle_signals()
    run_s = seconds_between(start_ns, now_ns())
    return replace(explain_script(records, arguments, status, records), seconds=run_s), run_s


def _write_patch(patch: str) -> None:
    """Write the patch to a new folder, and print it below the command that applies it."""
    from fastloop.explain.attach.script_patch import show_command

    folder = outputs_folder() / "tune"
    folder.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="script-", dir=folder)) / PATCH
    write_text(path, patch)
    print(f"\n{show_command(path)}\n\n{patch}", end="")


def _check_settings(given: dict[str, Any]) -> TuneSettings:
    """Parse the settings of tune by name; raises UsageError for a wrong setting."""
    from fastloop.tune.budget import parse_budget, parse_memory_limit
    from fastloop.tune.objective import check_objective
    from fastloop.tune.planning import TuneSettings

    with usage_errors():
        space = read_space(given["space"], sys.argv[1:])
    return TuneSettings(
        budget=parse_budget(given["budget"]),
        objective=check_objective(given["objective"]),
        memory_limit_mib=parse_memory_limit(given["memory_limit_mib"]),
        space=space,
        is_default_space=not given["space"],
    )


def _tune(requests: Sequence[JobRequest], settings: TuneSettings, given: dict[str, Any]) -> None:
    """Tune the job, or resume an earlier tuning, and print the outcome."""
    from fastloop.core.machine_counters import process_begun_ns
    from fastloop.explain.explain_job import check_request
    from fastloop.sweep.early_check import check_requests
    from fastloop.sweep.machine_lock import WAIT_HINT, lock_machine
    from fastloop.sweep.progress import show_budget
    from fastloop.tune.budget import Spending
    from fastloop.tune.outcome import format_outcome
    from fastloop.tune.tune_file import find_tuning, fingerprint_command

    request = check_request(requests, "tune")
    sweep = request.sweep
    folder = request.sweep_folder
    file = None
    command = fingerprint_command(request.overrides, given)
    if sweep.resume:
        found = find_tuning(sweep.resume, command)
        if found is None:
            print(f"resume={sweep.resume}: {NOTHING_TO_RESUME}", file=sys.stderr)
        else:
            folder, file = found
    make_sweep_folder(folder)
    # Absent data is reported before anything is planned.
    check_requests(requests)
    handle_signals(lambda: _describe_kept(folder))
    is_free = sweep.allow_concurrent and not sweep.wait
    spending = Spending(budget=settings.budget, begun_ns=process_begun_ns())
    with (
        exit_on_system_error(lambda: _describe_kept(folder)),
        nullcontext() if is_free else lock_machine(sweep.wait, hint=WAIT_HINT),
        show_budget(spending.share_used) as progress,
    ):
        plan = file or _plan(request, settings, command, spending, progress)
        outcome = _race(plan, folder, settings, spending, progress)
    print(f"{format_outcome(outcome)}\n\nfiles:  {folder}")
    _hand_over(outcome, request, folder)


def _describe_kept(folder: Path) -> str:
    """The end of the message after an interruption: which trials are kept, and where."""
    from fastloop.tune.tune_file import TUNE_FILE

    if not (folder / TUNE_FILE).exists():
        return ": no trial has finished"
    return f": finished trials are kept in {folder}; the same command with resume=last continues"


def _plan(
    request: JobRequest, settings: TuneSettings, command: str, spending: Spending, progress: Any
) -> TuneFile:
    """Plan the race: choose the configurations to measure. `progress` shows each step.

    command: fingerprint of the command, by which resume= finds this tuning again.
    """
    from fastloop.tune.planning import plan_tuning

    return plan_tuning(
        command,
        request,
        settings,
        compose=_compose_job,
        spending=spending,
        begin_step=progress.begin_step,
    )


def _race(
    file: TuneFile, folder: Path, settings: TuneSettings, spending: Spending, progress: Any
) -> TuneOutcome:
    """Race the configurations of the plan, or continue an earlier race of it.

    file: the plan, as it is kept in `folder`. Raises UsageError if the present configuration, the
    job of the command line, has failed.
    """
    from fastloop.tune.run_race import run_race

    spending.exhaustive = file.exhaustive
    folder.mkdir(parents=True, exist_ok=True)
    raced = [
        replace(each, folder=folder / each.folder.name, sweep_folder=folder)
        for each in compose_requests(file.jobs, folder)
    ]
    outcome = run_race(raced, file, settings, spending, progress)
    outcome.raise_if_failed()
    return outcome


def _hand_over(outcome: TuneOutcome, request: JobRequest, folder: Path) -> None:
    """Print the command line and the code of the recommended job; write tuned.yaml and tuned.py.

    If nothing is faster, the recommended job is the user's own. request: the user's own job.
    """
    from fastloop.tune.paste import explain_no_code, paste_code

    overrides = outcome.change.apply(request.overrides)
    print(f"run:    python -m fastloop.run {shlex.join([*request.flags, *overrides])}")
    question = "Which settings are the fastest, as `fastloop tune` has found?"
    # -cd would name the folder of tuned.yaml. Hydra accepts only one -cd, so the file would be
    # useless if the job needs another one.
    in_folder = read_command_line(sys.argv[1:]).config_dir
    text = None if in_folder else experiment_yaml(overrides, question)
    if text:
        (folder / "experiment").mkdir(exist_ok=True)
        write_text(folder / "experiment" / "tuned.yaml", text)
        print(f"or:     python -m fastloop.run -cd {shlex.quote(str(folder))} experiment=tuned")
    job = _compose_job(overrides)
    code = paste_code(job)
    if code:
        write_text(folder / "tuned.py", code)
    print(f"\n{code}" if code else f"code:   {explain_no_code(job)}")


def _compose_job(overrides: Sequence[str]) -> Job:
    """Compose the job of these overrides; raises UsageError, in one line, for overrides that no job
    can have."""
    with usage_errors():
        return compose_changed(overrides)
