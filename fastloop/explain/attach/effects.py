"""Find the effects of a script beyond its own process, which a second run would have again.

Python's audit hooks (PEP 578) report the files that it writes and removes, its connections, and the
programs that it starts.
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
from pathlib import Path
from types import ModuleType
from typing import Any

RECORD_FILE, REQUEST_FILE = "effects-{}.txt", "effects"
"""Names of the file with the effects of a process, by its id, and of the file that asks for it."""
LEFT_OUT = (".git", ".venv", "venv", "outputs", "__pycache__")
"""Folders in which no changes are looked for, and which a copy of the working folder lacks."""
MOST_LINES = 5
"""If a script changes more files of one folder than this, only their number is shown."""
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
"""Flags with which a file is opened for writing."""
SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/")
"""Folders of the system; writing to them does not count as an effect of a script."""
REMOVAL_EVENTS = {"os.remove", "os.rmdir", "shutil.rmtree"}
"""Audit events after which a file or folder is gone."""
_home: list[str] = []
"""The working folder of the command; empty until effects are recorded."""
_untold: list[str] = [*SYSTEM_FOLDERS]
"""Beginnings of paths that don't count as effects: of the system, and of temporary files once
effects are recorded."""


def ask_for_effects(folder: Path) -> None:
    """Let processes that record to the folder record their effects, too."""
    (folder / REQUEST_FILE).write_bytes(os.fsencode(os.getcwd()))


def are_effects_asked(folder: Path) -> bool:
    """True if processes that record to the folder record their effects, too."""
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
    _home[:] = [find_home(folder)]
    # The search for this folder opens files while it holds a lock: a hook that began the search in
    # the middle of another one would wait for that lock without end.
    _untold[:] = [*SYSTEM_FOLDERS, f"{tempfile.gettempdir()}{os.sep}"]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # The hook is called for every event of the interpreter, in the middle of any function. It
        # must not raise, and must not handle events that its own code causes.
        describe = DESCRIBED.get(event)
        if describe is None or getattr(busy, "is_busy", False):
            return
        busy.is_busy = True
        try:
            line = describe(*arguments)
            if line and str(folder) not in line and line not in seen:
                seen.add(line)
                os.write(file, f"{line}\n".encode(errors="replace"))
        # An effect that can't be described is not an error of the script's.
        except Exception:
            return
        finally:
            busy.is_busy = False

    sys.addaudithook(hook)


def note_saves(torch: ModuleType) -> None:
    """Let torch.save raise the event of a file that is opened: its C++ code opens files itself."""
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **named: Any) -> None:
        if isinstance(f, str | os.PathLike):
            sys.audit("open", os.fspath(f), "w", WRITE_FLAGS)
        original(obj, f, *args, **named)

    torch.save = save  # pyright: ignore[reportAttributeAccessIssue]


def read_files(folder: Path) -> dict[str, tuple[int, int]]:
    """The files below the folder: path -> time of the last change, and size.

    LEFT_OUT are left out, and what this command writes: its own folders, and files to which the
    shell has redirected its output. The script has nothing to do with these.
    """
    # The script's process, which imports this module as well, does without that one.
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
    """The effects of all processes, each once, in alphabetical order.

    before, after: the files of the working folder before and after the run. Libraries that are not
    written in Python open files without an event.
    """
    lines = {f"writes {path}" for path in after if after[path] != before.get(path)}
    lines |= {f"removes {path}" for path in before if path not in after}
    for path in records.glob(RECORD_FILE.format("*")):
        lines |= {*path.read_text(encoding="utf-8").splitlines()}
    return _count_files(sorted(lines))


def _count_files(lines: Sequence[str]) -> list[str]:
    """The lines, with a number in place of the names of many files of one folder."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in lines:
        verb, _, path = line.partition(" ")
        groups[verb, os.path.dirname(path)].append(line)
    shown = []
    for (verb, folder), group in groups.items():
        count = f"{verb} {len(group)} files or more in {folder or 'its working folder'}"
        shown += group if len(group) <= MOST_LINES else [count]
    return shown


def _describe_open(path: Any, _: Any, flags: int) -> str:
    # A number is a descriptor: its file was opened before.
    if not flags & WRITE_FLAGS or isinstance(path, int):
        return ""
    return _describe_file("writes", path)


def _describe_removal(path: Any, *_: Any) -> str:
    if isinstance(path, int):
        return ""
    return _describe_file("removes", path)


def _describe_rename(source: Any, target: Any, *_: Any) -> str:
    lines = _describe_removal(source), _describe_file("writes", target)
    return "\n".join(filter(None, lines))


def _describe_file(verb: str, path: Any) -> str:
    text = os.path.abspath(os.fsdecode(path))
    # The script may have changed its working folder, from which nobody reads the lines.
    home = _home[0] if _home else os.getcwd()
    # Temporary files have other names in each run, unless the script itself lies among them.
    if text.startswith(f"{home}{os.sep}"):
        text = os.path.relpath(text, home)
    elif text.startswith(tuple(_untold)):
        return ""
    return "" if "__pycache__" in text else f"{verb} {text}"


def _describe_connection(_: Any, address: Any) -> str:
    # Addresses of Unix sockets are paths: they lead to processes of this machine.
    if not isinstance(address, tuple):
        return ""
    return f"connects to {address[0]}:{address[1]}"


def _describe_program(program: Any, *_: Any) -> str:
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
"""For each audit event of an effect, the function that describes the effect in a line; the line is
empty if the event counts as none."""
