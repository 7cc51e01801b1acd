"""Carry the probe to the Python processes that a script starts; forked ones have it anyway.

multiprocessing's processes get it with their preparation data, as in coverage.py. Interpreters that
subprocess starts on a script or a module, such as torchrun's ranks, get it by their arguments, as
in debuggers. Neither needs the environment, a .pth file or sitecustomize.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from fastloop.explain.attach.library_files import OWN

BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))
"""The file that Python is to run in place of a script."""
PACKAGE_FOLDER = str(Path(__file__).resolve().parents[3])
"""The folder that contains the package fastloop."""
INSTALL = """\
import sys
sys.path.insert(0, {package!r})
try:
    from fastloop.explain.attach.follow_children import follow_children
    from fastloop.explain.attach.import_hook import install_probe
    from fastloop.explain.attach.library_files import keep_own
    from fastloop.explain.attach.stack_files import write_stacks_on_signals
finally:
    del sys.path[0]
write_stacks_on_signals({folder!r})
follow_children({folder!r})
keep_own({own!r})
install_probe({folder!r})
"""
"""The program by which a process of multiprocessing installs the probe."""
OPTIONS = re.compile(r"-(?=.)([bBdEIOPqRsStuv]*)(?:([mWX])(.*))?", re.DOTALL)
"""Options of the interpreter in one argument, such as -uW: those without a value, then one with a
value that may be the next argument. Options that run no script (-c, -h, -i, -V) are left out, and
-x, which would skip the first line of the bootstrap."""
LONG_OPTION = "--check-hash-based-pycs"
"""The interpreter's only long option that runs a script. Its value is the next argument."""


@cache  # a second call would send the probe twice
def follow_children(folder: str) -> None:
    """Let processes that this process starts from now on record to the folder as well."""
    spawn.get_preparation_data = _follow_multiprocessing(spawn.get_preparation_data, folder)
    subprocess.Popen.__init__ = _follow_popen(subprocess.Popen.__init__, folder)


def _follow_multiprocessing(
    original: Callable[[str], dict[str, Any]], folder: str
) -> Callable[[str], dict[str, Any]]:
    """multiprocessing's data of a new process, which installs the probe when it unpickles them."""

    def get_preparation_data(name: str) -> dict[str, Any]:
        return original(name) | {"fastloop_attach": Stowaway(folder)}

    return get_preparation_data


class Stowaway:
    """An object without data, which installs the probe when it is unpickled.

    It is pickled as a call of exec, which a new process finds even if it can't import fastloop.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, dict[str, str]]]:
        named = {"package": PACKAGE_FOLDER, "folder": self._folder, "own": sorted(OWN)}
        return exec, (INSTALL.format(**named), {})


def _follow_popen(original: Callable[..., None], folder: str) -> Callable[..., None]:
    """Popen.__init__, which runs the bootstrap before a Python script."""

    def __init__(self: Any, args: Any, *others: Any, **named: Any) -> None:  # noqa: N807
        # A single string, or a command for a shell, would have to be parsed as a shell does.
        if isinstance(args, list | tuple) and not (named.get("shell") or named.get("executable")):
            args = rewrite_command(args, folder, named.get("env"))
        original(self, args, *others, **named)

    return __init__


def rewrite_command(
    command: Sequence[Any], folder: str, environment: Mapping[Any, Any] | None = None
) -> list[Any]:
    """The command with the bootstrap before the script, if it runs this Python on a script.

    environment: of the new process; None: that of this process.
    """
    if not command or not all(isinstance(each, str | bytes | os.PathLike) for each in command):
        return [*command]
    words = [os.fsdecode(each) for each in command]
    # Another Python may not be able to run this code, and a command with the bootstrap has the
    # probe already.
    if BOOTSTRAP in words or not _is_this_python(words[0], environment):
        return [*command]
    options, script = _split_command(words)
    return [*options, BOOTSTRAP, folder, *script] if script else [*command]


def _split_command(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The interpreter with its options, and [-m] <script> with its arguments.

    The second part is empty if the interpreter runs no script, or if its options are not known.
    """
    place = 1
    while place < len(words) and words[place].startswith("-"):
        if words[place] == LONG_OPTION:
            place += 2
            continue
        found = OPTIONS.fullmatch(words[place])
        if not found:
            return words, []
        others, option, value = found.groups()
        if option == "m":
            module = [value, *words[place + 1 :]] if value else words[place + 1 :]
            before = [*words[:place], f"-{others}"] if others else words[:place]
            return before, ["-m", *module] if module else []
        place += 2 if option and not value else 1
    is_script = place < len(words) and Path(words[place]).suffix == ".py"
    return words[:place], words[place:] if is_script else []


def _is_this_python(program: str, environment: Mapping[Any, Any] | None) -> bool:
    """True for this interpreter of this environment, by whichever of its names."""
    # Names and values of a child's environment may be bytes, as in os.environb.
    path = None if environment is None else os.pathsep.join(os.get_exec_path(environment))
    found = shutil.which(program, path=path)
    if found is None:
        return False
    # An environment has links to a Python that others share, each in a folder of its own.
    ours, its = os.path.realpath(sys.executable), os.path.realpath(found)
    folder = os.path.dirname(sys.executable)
    return its == ours and os.path.realpath(os.path.dirname(found)) == os.path.realpath(folder)
