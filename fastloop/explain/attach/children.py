"""Carries the probe to the Python processes that a script starts anew; forked ones have it anyway.

multiprocessing's processes get it with their preparation data, as in coverage.py. Interpreters that
subprocess starts on a script or a module, such as torchrun's ranks, get it by their arguments, as
in debuggers. Neither needs the environment, a .pth file or sitecustomize.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any

BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))
PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])
"""The folder that contains the package fastloop."""
INSTALL = """\
import sys
sys.path.insert(0, {package!r})
try:
    from fastloop.explain.attach.children import follow_children
    from fastloop.explain.attach.import_hook import install_probe
    from fastloop.explain.attach.stack_files import write_stacks_on_signals
finally:
    del sys.path[0]
write_stacks_on_signals({folder!r})
follow_children({folder!r})
install_probe({folder!r})
"""
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of the interpreter that may have their value in the next argument."""


def follow_children(folder: str) -> None:
    """Let processes that this process starts from now on record to the folder as well."""
    get_data = spawn.get_preparation_data
    # A second wrapper would send the probe twice.
    if not isinstance(get_data, PreparationData):
        spawn.get_preparation_data = PreparationData(get_data, folder)
        subprocess.Popen.__init__ = _follow_popen(subprocess.Popen.__init__, folder)


class PreparationData:
    """multiprocessing's data of a new process, with the probe."""

    def __init__(self, original: Callable[[str], dict[str, Any]], folder: str) -> None:
        self._original = original
        self._folder = folder

    def __call__(self, name: str) -> dict[str, Any]:
        """The data; unpickling them installs the probe."""
        return self._original(name) | {"fastloop_attach": Stowaway(self._folder)}


class Stowaway:
    """Unpickling this installs the probe; it carries no data.

    It is pickled as a call of exec, which a new process finds even if it can't import fastloop.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, str]]]:
        return exec, (INSTALL.format(package=PACKAGE_FOLDER, folder=self._folder), {})


def _follow_popen(original: Callable[..., None], folder: str) -> Callable[..., None]:
    def __init__(self: Any, args: Any, *others: Any, **named: Any) -> None:  # noqa: N807
        # A single string, or a command for a shell, would have to be parsed as a shell does.
        if isinstance(args, list | tuple) and not named.get("shell"):
            args = rewrite_command(args, folder)
        original(self, args, *others, **named)

    return __init__


def rewrite_command(command: Sequence[Any], folder: str) -> list[Any]:
    """The command with the bootstrap before the script, if it runs this Python on a script."""
    place = _place_of_script(command)
    if place is None:
        return [*command]
    return [*command[:place], BOOTSTRAP, folder, *command[place:]]


def _place_of_script(command: Sequence[Any]) -> int | None:
    """Index of the script or of -m; None for other programs, and for -c."""
    if not command or not all(isinstance(each, str | bytes | os.PathLike) for each in command):
        return None
    words = [os.fsdecode(each) for each in command]
    # Another Python may not be able to run this code, and a command with the bootstrap has the
    # probe already.
    if not _is_this_python(words[0]) or BOOTSTRAP in words:
        return None
    place = 1
    while place < len(words) and words[place].startswith("-"):
        if words[place] == "-m":
            return place if place + 1 < len(words) else None
        # With these options Python runs no script file.
        if words[place].startswith("-c") or words[place] in ("-", "-i", "-h", "-V", "--version"):
            return None
        place += 2 if words[place] in WITH_VALUE else 1
    return place if place < len(words) and Path(words[place]).suffix == ".py" else None


def _is_this_python(program: str) -> bool:
    return os.path.realpath(program) == os.path.realpath(sys.executable)
