"""Checks of the words of a command that name a script."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

from fastloop.core.text import shorten_words


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
    if not Path(name).exists():
        shown = _show(name)
        return f"{command} {shown}: no such file; allowed: a Python script, or -m <module>"
    return ""


def explain_not_python(command: str, name: str) -> str:
    """The reason why the file of that name is no Python script; empty if it is one, or a folder,
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
    # Null bytes, of which older versions of Python raise ValueError.
    except ValueError as error:
        return f"{command} {shown}: not Python: {error}; {allowed}"
    return ""


def _show(name: str) -> str:
    return shorten_words(name if name.isprintable() else repr(name))
