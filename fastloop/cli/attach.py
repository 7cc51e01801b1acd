"""fastloop attach: why the loops of a script wait for data; the script is not changed.

    fastloop attach [-m] <script> [its arguments]
    fastloop attach [--] python <script> [its arguments]
    fastloop attach torchrun --nproc_per_node=2 <script> [its arguments]
    fastloop attach [--batches=100] [--seconds=30] [--hang=30] <script> [its arguments]
    fastloop attach --pid PID [--seconds=10]
    fastloop attach --try [--minutes=3] [--yes] [--copy] <script> [its arguments]

Runs the script as python does, and reads the clock around the work of its DataLoaders, in
all of its processes. The script ends as it would have, with its own output and exit status.
Then the findings are printed to stderr, for each loop over a DataLoader:

- the verdict: how much of its time the loop waited for data, and in one word the part on
  which it waited most: start-up (the start and the end of an epoch), hand-off (the way of a
  finished batch to the loop), collate, transform or decode. Other verdicts are step (it
  hardly waits), contention (its workers take the cores that its steps need), and
  unattributed (the figures do not show which part is the greatest);
- the parts of its time, with their 95 % intervals;
- what-ifs: the gain that a model of the loader predicts for other settings;
- if several ranks have the loop: a verdict on each, and which of them is the slowest.

--batches ends the script when its main loop, the longest one that trains, has worked on that
many batches. --seconds ends it when it has run that long and a loop asks for a batch. The exit
status is then 0.

While the script runs, the last row of a terminal shows its loop: batches, samples/s, and the
share of the last seconds in which it waited. If nothing moves in a loop for --hang seconds
(30), a report says which process waits for what, with the stacks. `kill -USR1` makes the
command report its findings so far, unless the script has its own handler of that signal.

With --try the beginning of the script then runs again, in rounds: in each round once as it is,
and once with each change that may help the DataLoader of the loop in which most time can be
saved, for at most --minutes in all. The answer is the share of the loop's time that each change
saves, with its 95 % interval, and attach.patch, for `git apply`. Ctrl-C ends the rounds; the
answer is then from those that have ended. Each run writes the script's files again: they are
listed before, and you are asked. --yes answers; --copy runs the script in a copy of the working
folder.

--pid samples a process that already runs, by py-spy, if that is installed and the system
allows it. It shows the share of samples in which the main thread was in next() of a DataLoader.

All findings are in the folder that is printed last, as attach.json and as a page, attach.html.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.attach_settings import PID, AttachSettings, read_settings
from fastloop.cli.attach_tries import open_working_folder, try_loop
from fastloop.cli.script_command import explain_no_script, find_command, without_python

if TYPE_CHECKING:
    from fastloop.core.machine_counters import Counters
    from fastloop.explain.attach.findings import ScriptFindings

SAMPLED_S = 10.0
"""Time for which the process of --pid is sampled, unless --seconds gives another time."""


def main() -> None:
    """Run the script, print the verdicts on its loops, and end as the script has ended."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__, end="")
        return
    try:
        settings = read_settings(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if settings.pid is not None:
        _sample_process(settings.pid, settings.seconds or SAMPLED_S)
        return
    arguments = find_command(without_python([*settings.script]))
    if message := explain_no_script("attach", arguments) or _unwritable_outputs():
        print(message, file=sys.stderr)
        sys.exit(2)
    _observe(settings, arguments)


def _observe(settings: AttachSettings, arguments: list[str]) -> None:
    """Run the script, print the findings, try changes with --try, and end as the script ended."""
    # These modules are imported only here, so --help and a wrong command line are answered at once.
    from fastloop.core.machine_counters import read_counters
    from fastloop.explain.attach.early_stop import EarlyStop, ask_for_stop
    from fastloop.explain.attach.effects import ask_for_effects, read_effects, read_files
    from fastloop.explain.attach.launch import end_like, make_record_folder, run_script
    from fastloop.explain.attach.live_watch import watch_script
    from fastloop.processes.signals import handle_signals, restore_default_signals

    records = make_record_folder()
    stack = ExitStack()
    try:
        # With --copy, the folder is copied before the first run of the script. Otherwise later runs
        # might find the checkpoint of this run, and continue from it.
        place = stack.enter_context(open_working_folder(settings.tries)) if settings.tries else None
        files = read_files(Path.cwd()) if settings.tries else {}
        if settings.tries:
            ask_for_effects(records)
        if settings.batches or settings.seconds:
            ask_for_stop(records, EarlyStop(batches=settings.batches, seconds=settings.seconds))
        before = read_counters()
        report = partial(_explain, records, arguments, None, before)
        with watch_script(records, report, settings.hang_s) as note_signal:
            status = run_script(arguments, records, note_signal)
        # While the script runs, signals are for the script. Afterwards this process handles them,
        # because it has files to remove.
        handle_signals()
        folder, findings = _explain(records, arguments, status, before)
        if settings.tries and place and folder and findings:
            effects = read_effects(records, files, read_files(Path.cwd()))
            try_loop(effects, arguments, settings.tries, findings, folder, place)
    finally:
        stack.close()
        shutil.rmtree(records, ignore_errors=True)
        restore_default_signals()
    end_like(status)


def _sample_process(pid: int, seconds: float) -> None:
    """Print the share of a running process's time in next() of DataLoaders. If the share can't be
    measured, print the reason and exit with 2."""
    from fastloop.core.types import Unsupported
    from fastloop.explain.attach.running_process import describe_process

    try:
        print(f"fastloop: {describe_process(pid, seconds)}")
    except Unsupported as error:
        print(f"attach {PID}{pid}: {error}", file=sys.stderr)
        sys.exit(2)


def _explain(
    records: Path, arguments: list[str], status: int | None, before: Counters
) -> tuple[Path | None, ScriptFindings | None]:
    """Print the findings. Returns (the folder to which they are written, the findings).

    Both are None if no loop was seen, or if nothing can be written, for example on a full disk.
    records: the folder of the files that the script's processes have written. status: exit status
    of the script; None if it still runs. before: the machine's counters before the run.
    """
    from fastloop.core.machine_counters import read_counters

    # The counters are read before the imports below, because these imports are no work of the
    # script's.
    after = read_counters()
    from fastloop.core.machine_load import load_between
    from fastloop.explain.attach.explain_script import PAGE, explain_script
    from fastloop.explain.attach.findings_text import describe_nothing, format_findings

    try:
        with _findings_folder(arguments) as folder:
            load = load_between(before, after)
            findings = explain_script(records, arguments, status, folder, load)
    except OSError as error:
        print(f"fastloop: no findings: {error}", file=sys.stderr)
        return None, None
    if not findings.loops:
        print(describe_nothing(findings), file=sys.stderr)
        return None, None
    print(
        f"\n{format_findings(findings)}\n\npage:   {folder / PAGE}\nfiles:  {folder}",
        file=sys.stderr,
    )
    return folder, findings


def _unwritable_outputs() -> str:
    """The reason why nothing can be written to the outputs folder; empty if it can."""
    # This is checked before the script runs, which may take hours. The folder is not created here,
    # because other ranks may check at the same time.
    from fastloop.core.outputs_folder import make_trial_file, outputs_folder

    folder = outputs_folder()
    try:
        make_trial_file(folder)
    except OSError as error:
        return f"the outputs folder (FASTLOOP_OUTPUTS): {error.strerror}: '{folder}'"
    return ""


@contextmanager
def _findings_folder(arguments: list[str]) -> Iterator[Path]:
    """Make a folder for the findings; remove it on any error, and if nothing is written to it."""
    folder = _make_folder(arguments)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not any(folder.iterdir()):
        folder.rmdir()


def _make_folder(arguments: list[str]) -> Path:
    """Make a new folder in the outputs folder, named after the script."""
    from fastloop.core.outputs_folder import outputs_folder

    name = arguments[1] if arguments[0] == "-m" else Path(arguments[0]).stem
    for number in count(1):
        folder = outputs_folder() / "attach" / f"{name}-{number}"
        # mkdir fails if the number is taken, perhaps by a command that runs at the same time.
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count ends")
