"""fastloop attach: why the loops of a script wait for data; the script is not changed.

    fastloop attach [-m] <script> [its arguments]
    fastloop attach [--] python <script> [its arguments]
    fastloop attach torchrun --nproc_per_node=2 <script> [its arguments]
    fastloop attach [--batches=100] [--seconds=30] [--hang=30] <script> [its arguments]
    fastloop attach --pid PID [--seconds=10]
    fastloop attach --try [--minutes=3] [--yes] [--copy] <script> [its arguments]

Runs the script as python does, with a reading of the clock around the work of its
DataLoaders, in all of its processes. The script ends as it would have, with its own output and
exit status. Then, on stderr, for each loop over a DataLoader:

- the verdict: how much of its time the loop waited for data, and the part that is the
  cause, in one word: step, start-up, hand-off, collate, transform, decode, or
  unattributed if the figures do not tell;
- the parts of its time, with their 95 % intervals;
- what-ifs: the gain that a model of the loader predicts for other settings;
- if several ranks have the loop: a verdict on each, and which of them is the slowest.

--batches ends the script when its main loop, the longest one that trains, has worked on so
many batches, --seconds when it has run that long and a loop asks for a batch; its status is then 0.

While the script runs, the last row of a terminal shows its loop: batches, samples/s, and the share
of the last seconds that it waited. A loop in which nothing moves for --hang seconds (30) is told,
with who waits for whom and the stacks. `kill -USR1` lets the command report its findings so far,
unless the script has its own handler of that signal.

With --try the script's beginning then runs again, as it is and with promising changes of
the DataLoader of the loop that waits longest, in interleaved rounds, for at most --minutes
in all. The answer is the share of the loop's time that each change saves, with its 95 %
interval, and attach.patch, for `git apply`. The script writes its files again: they are
listed before, and you are asked; --yes answers, --copy runs it in a copy of the working folder.

--pid samples a process that already runs, by py-spy, if that is installed and the system
allows it: it tells the share of samples in which the main thread was in next() of a DataLoader.

The folder that is named last has all of this, as attach.json and as a page, attach.html.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.cli.arguments import explain_no_script

if TYPE_CHECKING:
    from fastloop.core.machine_counters import Counters
    from fastloop.explain.attach.findings import LoopFindings, ScriptFindings
    from fastloop.explain.attach.try_changes import TriedLoop

PYTHON = re.compile(r"python[\d.]*")
TRY, YES, COPY, MINUTES = "--try", "--yes", "--copy", "--minutes="
BATCHES, SECONDS, HANG, PID = "--batches=", "--seconds=", "--hang=", "--pid="
SWITCHES, NUMBERS = (TRY, YES, COPY), (MINUTES, BATCHES, SECONDS, HANG, PID)
LEAST_MINUTES = 0.5
"""About the time of the seven runs that one change needs, if each of them imports torch in a second
and works on the loop for 3 s: with less the observed run would be in vain."""
SAMPLED_S = 10.0
"""Time for which a running process is sampled, unless --seconds says otherwise."""


@dataclass(frozen=True, kw_only=True)
class TrySettings:
    """Settings of the runs in which changes of a script's DataLoader are tried."""

    minutes: float = 3.0
    """The most time that all runs of the script together take."""
    is_agreed: bool = False
    """True: the script runs again without a question."""
    in_copy: bool = False
    """True: it runs in a copy of the working folder."""


@dataclass(frozen=True, kw_only=True)
class AttachSettings:
    """Settings of a run in which a script is observed."""

    batches: int | None = None
    """The script ends when its main loop has had so many batches; None: it ends by itself."""
    seconds: float | None = None
    """The script ends after this time; None: it ends by itself."""
    hang_s: float = 30.0
    """Time without any progress after which a loop is reported to hang."""
    pid: int | None = None
    """A running process, which is sampled; no script runs then."""
    tries: TrySettings | None = None
    """The settings for trying changes; None: no change is tried."""


def main() -> None:
    """Run the script, print the verdicts on its loops, and end as the script has ended."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__, end="")
        return
    try:
        words = _read_words(arguments)
        settings = _read_settings(words)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    if settings.pid is not None:
        _sample_process(settings.pid, settings.seconds or SAMPLED_S)
        return
    arguments = _find_command(_without_python(words.script))
    if message := explain_no_script("attach", arguments) or _unwritable_outputs():
        print(message, file=sys.stderr)
        sys.exit(2)
    _observe(settings, arguments)


def _observe(settings: AttachSettings, arguments: list[str]) -> None:
    """Run the script, print the findings, and end as it has ended."""
    # Imported here, so that --help and a wrong command line are answered at once.
    from fastloop.core.machine_counters import read_counters
    from fastloop.explain.attach.early_stop import EarlyStop, ask_for_stop
    from fastloop.explain.attach.effects import ask_for_effects, read_effects, read_files
    from fastloop.explain.attach.launch import end_like, make_record_folder, run_script
    from fastloop.explain.attach.live_watch import watch_script
    from fastloop.processes.signals import handle_signals, restore_default_signals

    records = make_record_folder()
    stack = ExitStack()
    try:
        # Before the script runs, which may find its own checkpoint the next time, and go on there.
        place = stack.enter_context(_working_folder(settings.tries)) if settings.tries else None
        files = read_files(Path.cwd()) if settings.tries else {}
        if settings.tries:
            ask_for_effects(records)
        if settings.batches or settings.seconds:
            ask_for_stop(records, EarlyStop(batches=settings.batches, seconds=settings.seconds))
        before = read_counters()
        report = partial(_explain, records, arguments, None, before)
        with watch_script(records, report, settings.hang_s) as note_signal:
            status = run_script(arguments, records, note_signal)
        # While the script runs, signals are its own. From here on there are files to remove.
        handle_signals()
        folder, findings = _explain(records, arguments, status, before)
        if settings.tries and place and folder and findings:
            effects = read_effects(records, files, read_files(Path.cwd()))
            _try_changes(effects, arguments, settings.tries, findings, folder, place)
    finally:
        stack.close()
        shutil.rmtree(records, ignore_errors=True)
        restore_default_signals()
    end_like(status)


def _sample_process(pid: int, seconds: float) -> None:
    """Print the share of a running process's time in next() of DataLoaders; or the reason why it is
    not known, and exit."""
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
    """Print the findings from the records; returns them with their folder, or None if there are
    none. On a full disk print a line, and keep the script's status. status: None: it still runs.
    """
    from fastloop.core.machine_counters import read_counters

    # Before the next imports: their time is not the script's.
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


def _find_slowest(findings: ScriptFindings) -> LoopFindings | None:
    """The loop over a DataLoader that waits longest; None, and a line is printed, if there is
    none, or if no call of the script makes its DataLoader."""
    from fastloop.explain.attach.findings import waiting_s

    loops = [each for each in findings.loops if not each.facts.get("is_watched")]
    found = max(loops, key=waiting_s, default=None)
    if found and found.facts["made_at"]:
        return found
    reason = "no loop is over a DataLoader"
    if found:
        reason = f"no call was seen to make the DataLoader of the loop at {found.facts['place']}"
    print(f"fastloop: nothing was tried: {reason}", file=sys.stderr)
    return None


def _print_effects(effects: list[str]) -> None:
    """Print the changes that the observed run made outside of itself; each further run may repeat
    them."""
    nothing = "  It was not seen to write or remove files, connect or start programs."
    lines = [f"  The script {line}, and each run may again." for line in effects] or [nothing]
    print("\n".join(lines), file=sys.stderr)


def _try_changes(
    effects: list[str],
    arguments: list[str],
    settings: TrySettings,
    findings: ScriptFindings,
    folder: Path,
    place: Path,
) -> None:
    """Try changes of the DataLoader of the loop, and print their savings."""
    from fastloop.core.types import Unsupported, UsageError
    from fastloop.explain.attach.changes_to_try import (
        check_minutes,
        choose_batches,
        choose_changes,
    )
    from fastloop.explain.attach.findings import outside_s
    from fastloop.explain.attach.script_runner import ScriptEnded, ScriptRunner
    from fastloop.explain.attach.try_changes import try_changes

    found = _find_slowest(findings)
    if found is None:
        return
    budget_s = 60 * settings.minutes
    changes = choose_changes(found)
    rest_s = outside_s(findings)
    batches = choose_batches(found, budget_s, rest_s)
    try:
        check_minutes(found, batches, settings.minutes, rest_s)
    except UsageError as error:
        print(f"fastloop: nothing was tried: {error}", file=sys.stderr)
        return
    print(
        f"\nTrying {len(changes)} changes of the DataLoader of the loop at "
        f"{found.facts['place']}: the script runs again, up to the loop's batch {batches}, for at "
        f"most {60 * settings.minutes:.0f} s in all",
        file=sys.stderr,
    )
    _print_effects(effects)
    if not settings.is_agreed and not _is_agreed():
        return
    try:
        runner = ScriptRunner(arguments, found, batches, place)
        tried = try_changes(runner, found, changes, budget_s, _report)
    except Unsupported as error:
        way = " in a copy of the working folder" if settings.in_copy else ""
        print(f"fastloop: nothing was tried{way}: {error}", file=sys.stderr)
        if not settings.in_copy and isinstance(error, ScriptEnded):
            print(f"  A script that goes on from its checkpoint needs {COPY}.", file=sys.stderr)
        return
    _write_tried(tried, folder)


def _write_tried(tried: TriedLoop, folder: Path) -> None:
    """Print the savings of the changes, and write them and the patch, if any, to the folder."""
    from fastloop.core.atomic_files import write_text
    from fastloop.explain.attach.findings_text import format_tried
    from fastloop.explain.attach.try_changes import PATCH, TRIED, to_json

    patch = folder / PATCH if tried.patch else None
    print(f"\n{format_tried(tried, patch)}", file=sys.stderr)
    try:
        if patch:
            write_text(patch, tried.patch)
        write_text(folder / TRIED, to_json(tried))
    except OSError as error:
        print(f"fastloop: the changes are not written: {error}", file=sys.stderr)


@contextmanager
def _working_folder(settings: TrySettings) -> Iterator[Path]:
    """The working folder; or a copy of it without LEFT_OUT, which is removed at the end."""
    from fastloop.explain.attach.effects import LEFT_OUT

    if not settings.in_copy:
        yield Path.cwd()
        return
    with ExitStack() as stack:
        try:
            # Beside the original, so that paths such as ../data lead to the same place.
            beside = tempfile.TemporaryDirectory(prefix=".fastloop-copy-", dir=Path.cwd().parent)
            name = stack.enter_context(beside)
            left_out = shutil.ignore_patterns(*LEFT_OUT)
            shutil.copytree(Path.cwd(), name, symlinks=True, ignore=left_out, dirs_exist_ok=True)
        except OSError as error:
            print(f"attach {COPY}: the working folder can't be copied: {error}", file=sys.stderr)
            sys.exit(2)
        yield Path(name)


def _report(line: str) -> None:
    print(line, file=sys.stderr)


def _is_agreed() -> bool:
    print("Run it again? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@dataclass(frozen=True, kw_only=True)
class AttachWords:
    """The words of a command line: flags of attach, then the script with its arguments."""

    switches: frozenset[str]
    numbers: Mapping[str, float]
    """Flag with a number -> its number."""
    script: list[str]


def _read_words(arguments: list[str]) -> AttachWords:
    """The words; raises ValueError for a flag that does not exist, or a wrong number."""
    switches: set[str] = set()
    numbers: dict[str, float] = {}
    # The number of a process may also be a word of its own.
    if arguments[:1] == [PID[:-1]]:
        arguments = [f"{PID}{''.join(arguments[1:2])}", *arguments[2:]]
    while arguments and arguments[0].startswith("--") and arguments[0] != "--":
        word, arguments = arguments[0], arguments[1:]
        name = next((each for each in NUMBERS if word.startswith(each)), None)
        if name:
            numbers[name] = _positive_number(word, name)
        elif word in SWITCHES:
            switches.add(word)
        else:
            allowed = f"{', '.join((*SWITCHES, *NUMBERS))}; then [-m] <script> [its arguments]"
            raise ValueError(f"attach {word}: allowed: {allowed}")
    return AttachWords(switches=frozenset(switches), numbers=numbers, script=arguments)


def _read_settings(words: AttachWords) -> AttachSettings:
    """The settings that the flags give; raises ValueError for flags that exclude each other."""
    numbers = words.numbers
    if PID in numbers:
        others = [*words.script, *words.switches, *({*numbers} - {PID, SECONDS})]
        if others:
            raise ValueError(f"attach {PID}... {others[0]}: allowed: {SECONDS} alone beside {PID}")
    return AttachSettings(
        batches=int(numbers[BATCHES]) if BATCHES in numbers else None,
        seconds=numbers.get(SECONDS),
        hang_s=numbers.get(HANG, AttachSettings.hang_s),
        pid=int(numbers[PID]) if PID in numbers else None,
        tries=_read_try_settings(words),
    )


def _read_try_settings(words: AttachWords) -> TrySettings | None:
    """The settings of --try; None without it. Raises ValueError for flags that need it, and if
    nobody can be asked."""
    if TRY not in words.switches:
        if of_tries := [*words.switches, *({MINUTES} & {*words.numbers})]:
            raise ValueError(f"attach {of_tries[0]}: allowed: together with {TRY}")
        return None
    if YES not in words.switches and not sys.stdin.isatty():
        raise ValueError(
            f"attach {TRY}: it asks before it runs the script again, and there is no terminal; "
            f"allowed here: together with {YES}"
        )
    return TrySettings(
        minutes=words.numbers.get(MINUTES, TrySettings.minutes),
        is_agreed=YES in words.switches,
        in_copy=COPY in words.switches,
    )


def _positive_number(word: str, name: str) -> float:
    least = LEAST_MINUTES if name == MINUTES else 0.0
    allowed = f"{least:g} or more" if least else "a number above 0"
    allowed = "a whole number above 0" if name in (BATCHES, PID) else allowed
    try:
        number = float(word.removeprefix(name))
    except ValueError:
        number = 0.0
    is_number = 0 < number < float("inf") and number >= least
    if not is_number or (name in (BATCHES, PID) and number != int(number)):
        raise ValueError(f"attach {word}: allowed: {allowed}")
    return number


def _without_python(arguments: list[str]) -> list[str]:
    """The arguments without -- and without a name of Python: the script runs in fastloop's
    Python."""
    arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    name = arguments[0] if arguments else ""
    is_python = PYTHON.fullmatch(name) is not None or (
        Path(name).name.startswith("python") and _is_this_python(name)
    )
    return arguments[1:] if is_python and not Path(name).is_dir() else arguments


def _is_this_python(path: str) -> bool:
    return Path(path).is_file() and Path(path).resolve() == Path(sys.executable).resolve()


def _find_command(arguments: list[str]) -> list[str]:
    """The arguments, with a command such as torchrun replaced by the path of its Python script."""
    if not arguments or arguments[0].startswith("-") or Path(arguments[0]).exists():
        return arguments
    path = shutil.which(arguments[0])
    if path is None:
        return arguments
    with Path(path).open("rb") as file:
        first = file.readline(256)
    is_python = first.startswith(b"#!") and b"python" in first
    return [path, *arguments[1:]] if is_python else arguments


def _unwritable_outputs() -> str:
    """The reason why nothing can be written to the outputs folder; empty if it can."""
    # Checked before the script runs, possibly for hours. The folder is not made, as other ranks may
    # check at the same time.
    from fastloop.core.outputs_folder import nearest_existing, outputs_folder

    folder = outputs_folder()
    try:
        tempfile.TemporaryFile(dir=nearest_existing(folder)).close()
    except OSError as error:
        return f"the outputs folder (FASTLOOP_OUTPUTS): {error.strerror}: '{folder}'"
    return ""


@contextmanager
def _findings_folder(arguments: list[str]) -> Iterator[Path]:
    """A new folder, which is removed on any error and if nothing is written to it."""
    folder = _make_folder(arguments)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    if not any(folder.iterdir()):
        folder.rmdir()


def _make_folder(arguments: list[str]) -> Path:
    """A new folder in the outputs folder, named after the script."""
    from fastloop.core.outputs_folder import outputs_folder

    name = arguments[1] if arguments[0] == "-m" else Path(arguments[0]).stem
    for number in count(1):
        folder = outputs_folder() / "attach" / f"{name}-{number}"
        # mkdir fails if the number is taken, also by a command that runs at the same time.
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count ends")
