"""Find the script in a command line that may begin with `python` or `torchrun`.

`fastloop attach` and `fastloop tune --script` run the script.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastloop.core.text import shorten_words

PYTHON = re.compile(r"python[\d.]*")
"""Names of the command that starts Python, such as python3.12."""
TORCHRUN = {"torchrun", "torch.distributed.run"}
"""torchrun, as a command and as a module."""
SWITCHES = {
    *("-h", "--help", "--standalone", "-m", "--module", "--no-python", "--run-path"),
    "--virtual-local-rank",
}
"""torchrun's options without a value. Every other option has a value, in the same word or in the
next word."""
MODULE = {"-m", "--module"}
"""torchrun's options with which the first word after all options is a module instead of a
script."""
PROCESSES, NODES = "--nproc-per-node", "--nnodes"
"""torchrun's options for the number of processes on each node, and for the number of nodes."""
VARIABLE_OF_OPTION = {PROCESSES: "PET_NPROC_PER_NODE", NODES: "PET_NNODES"}
"""Option of torchrun -> the environment variable that torchrun reads if the option is missing."""


def without_python(arguments: list[str]) -> list[str]:
    """Remove a leading `--` and `python`, because the script runs in fastloop's own Python."""
    arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    name = arguments[0] if arguments else ""
    is_python = PYTHON.fullmatch(name) is not None or (
        Path(name).name.startswith("python") and _is_this_python(name)
    )
    return arguments[1:] if is_python and not Path(name).is_dir() else arguments


def _is_this_python(path: str) -> bool:
    """True for a path of the interpreter that runs fastloop."""
    return Path(path).is_file() and Path(path).resolve() == Path(sys.executable).resolve()


def find_command(arguments: list[str]) -> list[str]:
    """Replace a command on the PATH that is a Python script, such as torchrun, by its path."""
    if not arguments or arguments[0].startswith("-") or Path(arguments[0]).exists():
        return arguments
    path = shutil.which(arguments[0])
    if path is None:
        return arguments
    with Path(path).open("rb") as file:
        first = file.readline(256)
    is_python = first.startswith(b"#!") and b"python" in first
    return [path, *arguments[1:]] if is_python else arguments


def explain_no_script(command: str, arguments: Sequence[str]) -> str:
    """A message if the arguments do not begin with a script or -m <module>; empty if they do.

    command: the fastloop command, for the message.
    """
    usual = "allowed: [-m] <script> [its arguments]"
    if not arguments:
        return f"{command}: {usual}"
    name = arguments[0]
    if name == "-m":
        is_complete = len(arguments) > 1
        return "" if is_complete else f"{command} -m: allowed: -m <module> [its arguments]"
    if name.startswith("-"):
        return f"{command} {_show(name)}: {usual}"
    # Path("") is the working folder, which is not a script.
    if not name or not Path(name).exists():
        shown = _show(name)
        return f"{command} {shown}: no such file; allowed: a Python script, or -m <module>"
    return ""


def explain_not_python(command: str, name: str) -> str:
    """A message that says why a file is not a Python script; empty if it is one.

    command: the fastloop command, for the message. name: path of the file, or of a folder that has
    to contain a `__main__.py`.
    """
    path = Path(name) / "__main__.py" if Path(name).is_dir() else Path(name)
    shown = _show(name)
    allowed = "allowed: a Python script, or -m <module>"
    try:
        with io.open_code(str(path.absolute())) as file:
            source = file.read()
        # Warnings are ignored here, because the run of the script shows them.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
    except OSError as error:
        return f"{command} {shown}: {error.strerror}; {allowed}"
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{command} {shown}: not Python: {error.msg}{line}; {allowed}"
    # Older versions of Python raise ValueError for null bytes.
    except ValueError as error:
        return f"{command} {shown}: not Python: {error}; {allowed}"
    return ""


def _show(name: str) -> str:
    """The name for a message: in quotes if it can't be printed as it is, and shortened."""
    return shorten_words(name if name.isprintable() else repr(name))


@dataclass(frozen=True)
class TorchrunWords:
    """The parsed words of a torchrun command."""

    processes: str
    """Number of processes for each node, as it is written: a number, or a word such as `gpu`."""
    nodes: str
    """Number of nodes, as it is written: a number, or a minimum and a maximum such as 1:2."""
    script: list[str]
    """[-m] <script> [its arguments]; empty if there is none."""

    @property
    def is_single(self) -> bool:
        """True if there is certainly only one rank."""
        return self.processes == "1" and self.nodes in ("1", "1:1")


def read_torchrun(words: Sequence[str]) -> TorchrunWords | None:
    """Parse the words as a torchrun command; None if they are another command."""
    is_module = words[:1] == ["-m"]
    name = "".join(words[1:2]) if is_module else Path("".join(words[:1])).name
    if name not in TORCHRUN:
        return None
    rest = [*words[2 if is_module else 1 :]]
    given = {option: os.environ.get(name, "1") for option, name in VARIABLE_OF_OPTION.items()}
    runs_module = False
    # torchrun accepts both - and _ between the words of an option's name.
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        option = option.replace("_", "-")
        if option == "--":
            break
        runs_module = runs_module or option in MODULE
        if option in SWITCHES:
            continue
        # The next word is the value, unless the value is in this word: after `=`, or after an
        # option of one letter, as in -t3.
        if not equals and (option.startswith("--") or len(option) == 2):
            value = rest.pop(0) if rest else ""
        given[option] = value
    script = ["-m", *rest] if runs_module and rest else rest
    return TorchrunWords(given[PROCESSES], given[NODES], script)
