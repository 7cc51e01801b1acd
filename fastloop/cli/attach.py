"""fastloop attach: why the loops of a script wait for data; the script is not changed.

    fastloop attach [-m] <script> [its arguments]
    fastloop attach [--] python <script> [its arguments]
    fastloop attach torchrun --nproc_per_node=2 <script> [its arguments]

Runs the script as python does, with a reading of the clock around what its DataLoaders
do, in all of its processes. The script ends as it would have, with its own output and
exit status. Then, on stderr, for each loop over a DataLoader:

- the verdict: how much of its time the loop waited for data, and the part that is the
  cause, in one word: step, start-up, hand-off, collate, transform, decode, or
  unattributed if the figures do not tell;
- the parts of its time, with their 95 % intervals;
- what-ifs: the gain that a model of the loader predicts for other settings;
- if several ranks have the loop: a verdict on each, and which of them is the slowest.

The folder that is named last has all of this, as attach.json and as a page, attach.html.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastloop.core.machine_counters import Counters

from fastloop.core.printable import shorten_words

PYTHON = re.compile(r"python[\d.]*")


def main() -> None:
    """Run the script, print the verdicts on its loops, and end as the script has ended."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__, end="")
        return
    arguments = _find_command(_without_python(arguments))
    if message := _refusal(arguments) or _unwritable_outputs():
        print(message, file=sys.stderr)
        sys.exit(2)
    # imported here, so that --help and a wrong command line are answered at once
    from fastloop.core.machine_counters import read_counters
    from fastloop.explain.attach.launch import end_like, make_record_folder, run_script
    from fastloop.processes.lifecycle import handle_signals, restore_default_signals

    records = make_record_folder()
    try:
        before = read_counters()
        status = run_script(arguments, records)
        # While the script runs, signals are its own. From here on there are files to remove.
        handle_signals()
        _explain(records, arguments, status, before)
    finally:
        shutil.rmtree(records, ignore_errors=True)
        restore_default_signals()
    end_like(status)


def _explain(records: Path, arguments: list[str], status: int, before: Counters) -> None:
    """Print the findings from the records; on a full disk print a line, and keep the script's
    status.
    """
    from fastloop.core.machine_counters import read_counters

    # before the next imports: their time is not the script's
    after = read_counters()
    from fastloop.core.machine_load import load_between
    from fastloop.explain.attach.findings import describe_nothing, format_findings
    from fastloop.explain.attach.of_script import PAGE, explain_records

    try:
        with _findings_folder(arguments) as folder:
            load = load_between(before, after)
            findings = explain_records(records, arguments, status, folder, load)
    except OSError as error:
        print(f"fastloop: no findings: {error}", file=sys.stderr)
        return
    if not findings.loops:
        print(describe_nothing(findings), file=sys.stderr)
        return
    print(
        f"\n{format_findings(findings)}\n\npage:   {folder / PAGE}\nfiles:  {folder}",
        file=sys.stderr,
    )


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


def _refusal(arguments: list[str]) -> str:
    """The reason why these arguments name no script; empty if they do."""
    if not arguments:
        return "attach: allowed: [-m] <script> [its arguments]"
    name = arguments[0]
    if name == "-m":
        return "" if len(arguments) > 1 else "attach -m: allowed: -m <module> [its arguments]"
    if name.startswith("-"):
        return f"attach {name}: allowed: [-m] <script> [its arguments]"
    if not Path(name).exists():
        shown = shorten_words(name if name.isprintable() else repr(name))
        return f"attach {shown}: no such file; allowed: a Python script, or -m <module>"
    return ""


def _unwritable_outputs() -> str:
    """The reason why nothing can be written to the outputs folder; empty if it can."""
    # Checked before the script runs, possibly for hours. The folder is not made, as other ranks may
    # check at the same time.
    from fastloop.core.files import outputs_folder

    folder = outputs_folder()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
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
    from fastloop.core.files import outputs_folder

    name = arguments[1] if arguments[0] == "-m" else Path(arguments[0]).stem
    for number in count(1):
        folder = outputs_folder() / "attach" / f"{name}-{number}"
        # mkdir fails if the number is taken, also by a command that runs at the same time
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count ends")
