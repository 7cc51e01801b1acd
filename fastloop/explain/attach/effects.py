"""Find the effects of a script beyond its own process, which a second run would have again.

An effect is a file that the script writes or removes, a connection that it opens, or a program that
it starts. Python's audit hooks (PEP 578) report effects inside the script's processes. These
processes write a line for each effect to a folder of records, which the command reads after the
run.
"""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

RECORD_FILE, REQUEST_FILE = "effects-{}.txt", "effects"
"""Names of two files: the first has the effects of the process with that id, and the second asks
processes to write such files."""
LEFT_OUT = (".git", ".venv", "venv", "outputs", "__pycache__")
"""Names of folders in which no changed files are looked for. A copy of the working folder lacks
these folders."""
MOST_LINES = 5
"""If a script changes more files of one folder than this, only the number of the files is shown."""
OF_FILES = ("writes", "removes")
"""First words of the lines that name a file."""
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
"""Flags with which a file is opened for writing."""
SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/")
"""Folders of the system; writing to them does not count as an effect of a script."""
REMOVAL_EVENTS = {"os.remove", "os.rmdir", "shutil.rmtree"}
"""Audit events after which a file or folder is gone."""


@dataclass(frozen=True)
class EffectPaths:
    """The folders by which a line names a file, or by which the file is left out."""

    home: str
    """The working folder of the command, to which the names of its files are relative. The script
    may have changed its own working folder."""
    left_out: tuple[str, ...]
    """Beginnings of paths outside of `home` that don't count as effects."""


def ask_for_effects(folder: Path) -> None:
    """Ask processes that write records to the folder to record their effects as well."""
    (folder / REQUEST_FILE).write_bytes(os.fsencode(os.getcwd()))


def are_effects_asked(folder: Path) -> bool:
    """True if processes that write records to the folder have to record their effects as well."""
    return (folder / REQUEST_FILE).exists()


def find_home(folder: Path) -> str:
    """The working folder of the command that asked for effects, or that of this process."""
    asked = folder / REQUEST_FILE
    return os.fsdecode(asked.read_bytes()) if asked.exists() else os.getcwd()


def record_effects(folder: Path) -> None:
    """Write a line to the folder for each effect of this process and of its forks from now on."""
    path = folder / RECORD_FILE.format(os.getpid())
    busy = threading.local()
    seen = set()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    # Temporary files have other names in each run. Their folder is found here, because gettempdir()
    # holds a lock while it opens files, which call the hook. A hook that called gettempdir() itself
    # would wait for the lock for ever.
    temporary = f"{tempfile.gettempdir()}{os.sep}"
    paths = EffectPaths(find_home(folder), (*SYSTEM_FOLDERS, temporary))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # The interpreter calls the hook for every event, in the middle of any function. So the hook
        # must not raise, and must not handle events that its own code causes.
        describe = DESCRIBED.get(event)
        if describe is None or getattr(busy, "is_busy", False):
            return
        busy.is_busy = True
        try:
            line = describe(paths, *arguments)
            if line and str(folder) not in line and line not in seen:
                seen.add(line)
                os.write(file, f"{line}\n".encode(errors="replace"))
        # An effect that can't be described is not an error of the script's.
        except Exception:
            return
        finally:
            busy.is_busy = False

    sys.addaudithook(hook)


def _describe_open(paths: EffectPaths, path: Any, _: Any, flags: int) -> str:
    # A number is a descriptor: its file was opened before.
    if not flags & WRITE_FLAGS or isinstance(path, int):
        return ""
    return _describe_file(paths, "writes", path)


def _describe_removal(paths: EffectPaths, path: Any, *_: Any) -> str:
    return "" if isinstance(path, int) else _describe_file(paths, "removes", path)


def _describe_rename(paths: EffectPaths, source: Any, target: Any, *_: Any) -> str:
    lines = _describe_removal(paths, source), _describe_file(paths, "writes", target)
    return "\n".join(filter(None, lines))


def _describe_file(paths: EffectPaths, verb: str, path: Any) -> str:
    """The line on a file; empty if the file is left out."""
    text = os.path.abspath(os.fsdecode(path))
    # Files in the working folder count even if that folder is temporary.
    if text.startswith(f"{paths.home}{os.sep}"):
        text = os.path.relpath(text, paths.home)
    elif text.startswith(paths.left_out):
        return ""
    return "" if "__pycache__" in text else f"{verb} {text}"


def _describe_connection(_paths: EffectPaths, _socket: Any, address: Any) -> str:
    # The address of a Unix socket is a path, not a tuple. It leads to a process of this machine.
    if not isinstance(address, tuple):
        return ""
    return f"connects to {address[0]}:{address[1]}"


def _describe_program(_paths: EffectPaths, program: Any, *_: Any) -> str:
    text = os.fsdecode(program)
    is_python = os.path.realpath(text) == os.path.realpath(sys.executable)
    # Python starts ldconfig to find libraries, and a further Python for its own processes.
    return "" if is_python or os.path.basename(text) == "ldconfig" else f"starts {text}"


DESCRIBED: dict[str, Callable[..., str]] = {
    "open": _describe_open,
    **dict.fromkeys(REMOVAL_EVENTS, _describe_removal),
    "os.rename": _describe_rename,
    "socket.connect": _describe_connection,
    "subprocess.Popen": _describe_program,
    "os.system": _describe_program,
}
"""Audit event -> the function that describes its effect in a line. The function gets the paths and
the event's arguments. The line is empty if the event does not count as an effect."""


def note_saves(torch: ModuleType) -> None:
    """Wrap torch.save so that it raises the audit event `open` for its file.

    torch's C++ code opens that file without an event. torch: the imported module.
    """
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **named: Any) -> None:
        if isinstance(f, str | os.PathLike):
            sys.audit("open", os.fspath(f), "w", WRITE_FLAGS)
        original(obj, f, *args, **named)

    torch.save = save  # pyright: ignore[reportAttributeAccessIssue]


def read_files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files below the folder: path -> time of the last change in ns, and size in bytes.

    Files in LEFT_OUT are not listed, and neither are the files that this command writes itself: its
    own folder, and files to which the shell has redirected its output.
    """
    # The script's process imports this module as well, and does not need the module below.
    from fastloop.core.outputs_folder import outputs_folder

    found = {}
    outputs = _find_redirections()
    own = os.path.abspath(outputs_folder() / "attach")
    for path, folders, names in os.walk(os.path.abspath(folder)):
        folders[:] = [
            name for name in folders if name not in LEFT_OUT and os.path.join(path, name) != own
        ]
        for name in names:
            file = os.path.join(path, name)
            # A link may lead nowhere, and a file may go at any time.
            with suppress(OSError):
                status = os.stat(file, follow_symlinks=False)
                if (status.st_dev, status.st_ino) in outputs:
                    continue
                found[os.path.relpath(file, folder)] = status.st_mtime_ns, status.st_size
    return found


def _find_redirections() -> set[tuple[int, int]]:
    """Device and inode of the standard output and error of this process."""
    found = set()
    for number in (1, 2):
        # Either may be closed.
        with suppress(OSError):
            status = os.fstat(number)
            found.add((status.st_dev, status.st_ino))
    return found


def read_effects(
    records: Path, before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
) -> list[str]:
    """The lines on the effects of all processes; lines on files of one folder are adjacent.

    A line has one effect, or the number of files of a folder, see MOST_LINES. records: the folder
    of the records. before, after: the files of the working folder before and after the run, as from
    `read_files`. They also show files that libraries in other languages open, because such
    libraries raise no event.
    """
    lines = {f"writes {path}" for path in after if after[path] != before.get(path)}
    lines |= {f"removes {path}" for path in before if path not in after}
    for path in records.glob(RECORD_FILE.format("*")):
        lines |= {*path.read_text(encoding="utf-8").splitlines()}
    return _count_files(sorted(lines))


def _count_files(lines: Sequence[str]) -> list[str]:
    """The lines; a single line with a number replaces more than MOST_LINES files of one folder."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in lines:
        verb, _, path = line.partition(" ")
        groups[verb, os.path.dirname(path)].append(line)
    shown = []
    for (verb, folder), group in groups.items():
        count = f"{verb} {len(group)} files or more in {folder or 'its working folder'}"
        shown += [count] if verb in OF_FILES and len(group) > MOST_LINES else group
    return shown
