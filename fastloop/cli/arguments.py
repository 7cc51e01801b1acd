"""Arguments of commands without Hydra: `name=value`, and the words that name a script."""

from __future__ import annotations

import io
import re
import shutil
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from fastloop.core.text import shorten_words
from fastloop.core.types import UsageError

PYTHON = re.compile(r"python[\d.]*")
CONTROL = re.compile("[\x00-\x1f\x7f]")


def parse_settings(
    arguments: Sequence[str], defaults: Mapping[str, str], *, may_be_empty: bool = True
) -> dict[str, str]:
    """The defaults, updated with the arguments.

    may_be_empty: False if empty values are refused, such as that of a variable that is not set.
    Raises UsageError for these, an unknown setting, one that is given twice, and control
    characters.
    """
    settings, given = dict(defaults), set[str]()
    for argument in arguments:
        # A terminal would execute control characters when an error message prints the argument.
        if CONTROL.search(argument):
            raise UsageError(f"{argument!r}: allowed: printable characters")
        name, equals, value = argument.partition("=")
        allowed = "allowed: " + ", ".join(f"{setting}=…" for setting in defaults)
        if not equals:
            raise UsageError(f"{argument}: settings have the form name=value; {allowed}")
        if name not in defaults:
            raise UsageError(f"{argument}: no such setting; {allowed}")
        if name in given:
            raise UsageError(f"{argument}: {name}= is given twice; allowed: once")
        if not value.strip() and not may_be_empty:
            raise UsageError(f"{argument}: it is empty; allowed: a value, or no {name}=")
        given.add(name)
        settings[name] = _expand_home(value)
    return settings


def _expand_home(value: str) -> str:
    """The value with the home folder in place of a ~ at its beginning, if there is one."""
    # The user may have no home folder.
    with suppress(RuntimeError):
        return str(Path(value).expanduser()) if value.startswith("~/") else value
    return value


def without_python(arguments: list[str]) -> list[str]:
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


def find_command(arguments: list[str]) -> list[str]:
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


def explain_no_script(command: str, arguments: Sequence[str]) -> str:
    """The reason why [-m] <script> [its arguments] name no script; empty if they do."""
    usual = "allowed: [-m] <script> [its arguments]"
    if not arguments:
        return f"{command}: {usual}"
    name = arguments[0]
    if name == "-m":
        is_complete = len(arguments) > 1
        return "" if is_complete else f"{command} -m: allowed: -m <module> [its arguments]"
    if name.startswith("-"):
        return f"{command} {name}: {usual}"
    # Path("") is the working folder, which is not a script.
    if not name or not Path(name).exists():
        shown = _show(name)
        return f"{command} {shown}: no such file; allowed: a Python script, or -m <module>"
    return ""


def explain_not_python(command: str, name: str) -> str:
    """The reason why the file of that name is not a Python script; empty if it is one, or a folder,
    of which Python runs `__main__.py`."""
    path = Path(name) / "__main__.py" if Path(name).is_dir() else Path(name)
    shown, allowed = _show(name), "allowed: a Python script, or -m <module>"
    try:
        with io.open_code(str(path.absolute())) as file:
            source = file.read()
        # The script's own run shows its warnings.
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
    return shorten_words(name if name.isprintable() else repr(name))
