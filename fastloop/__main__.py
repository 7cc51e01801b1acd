"""The entry point of `fastloop <command>`: run the module of fastloop/cli/ that has the command.

`fastloop run`, and settings without a command, do the same as `python -m fastloop.run`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from fastloop.cli.commands import COMMANDS, HELP, MEANT_COMMANDS, module_of
from fastloop.core.similar_names import closest_name, suggest
from fastloop.processes.command_endings import (
    exit_at_once_on_signals,
    exit_on_system_error,
    open_standard_streams,
    quiet_on_closed_pipe,
)


def main() -> None:
    """Run the command that the first argument names, or print help if there is no argument.

    Prints one line and exits with status 1 for an unknown command, and on an error of the system.
    """
    open_standard_streams()
    exit_at_once_on_signals()
    with quiet_on_closed_pipe(), exit_on_system_error():
        _run_command()


def _run_command() -> None:
    """Run the command that the first argument names, `run` if it is a setting, or print help.

    The name of the command is moved from sys.argv[1] to the end of sys.argv[0].
    """
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("", "-h", "--help"):
        print(HELP, end="")
        return
    _allow_imports_from_working_folder()
    if name in COMMANDS:
        sys.argv[:2] = [f"{sys.argv[0]} {name}"]
    elif "=" not in name and not name.startswith(("-", "+", "~")):
        sys.exit(_no_such_command(name))
    import_module(module_of(name if name in COMMANDS else "run")).main()


def _no_such_command(name: str) -> str:
    """The message for an unknown command, with the command that the user may have meant."""
    meant = MEANT_COMMANDS.get(name) or closest_name(name, COMMANDS)
    hint = f"{suggest(f'fastloop {meant}')} " if meant else ""
    return f"{name}: no such command; {hint}allowed: {', '.join(COMMANDS)}"


def _allow_imports_from_working_folder() -> None:
    """Put the working folder first on sys.path, so that a job can import the user's modules.

    `python -m` does so, but the console script `fastloop` does not. Python's safe mode (-P) is
    respected. Child processes inherit the path.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.insert(0, folder)


if __name__ == "__main__":
    main()
