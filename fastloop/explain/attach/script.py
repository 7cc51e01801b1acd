"""Runs a script or a module as `python <script>` and `python -m <module>` do, in `__main__`."""

from __future__ import annotations

import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType
from typing import Any

OWN_FOLDERS = os.path.join("fastloop", "explain", "attach"), os.path.join("fastloop", "timeline")


def become_script(arguments: Sequence[str]) -> None:
    """Run [-m] <script> [its arguments] in this process; what it raises is raised.

    Whatever prints the traceback is shown the script's frames alone.
    """
    run = _prepare_module(arguments[1:]) if arguments[0] == "-m" else _prepare_file(arguments)
    try:
        run()
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise


def _prepare_module(arguments: Sequence[str]) -> Callable[[], Any]:
    sys.argv[:] = ["-m", *arguments[1:]]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _empty_main()
    # the function that python -m calls: the public run_module leaves another __main__ behind
    run = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]
    return partial(run, arguments[0])


def _prepare_file(arguments: Sequence[str]) -> Callable[[], Any]:
    sys.argv[:] = arguments
    path = arguments[0]
    if Path(path).is_dir():
        sys.path.insert(0, os.path.abspath(path))
        _empty_main()
        run = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]
        return partial(run, "__main__", alter_argv=False)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    names = _empty_main()
    file = os.path.abspath(path)  # Path would resolve symbolic links
    loader = SourceFileLoader("__main__", file)
    names |= {"__file__": file, "__cached__": None, "__loader__": loader}
    return partial(_run_file, file, names)


def _run_file(file: str, names: dict[str, Any]) -> None:
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, names)


def _empty_main() -> dict[str, Any]:
    """The names of the module `__main__`, which are then those of a fresh one."""
    names = vars(sys.modules["__main__"])
    builtins = names["__builtins__"]
    names.clear()
    names |= {"__name__": "__main__", "__doc__": None, "__package__": None, "__loader__": None}
    names |= {"__spec__": None, "__annotations__": {}, "__builtins__": builtins}
    return names


def _without_own_frames(hook: Callable[..., Any]) -> Callable[..., Any]:
    """An excepthook that calls the script's with the tracebacks that it would have got."""

    def call(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        for error in _chain(value):
            error.__traceback__ = _script_frames(error.__traceback__)
        hook(kind, value, value.__traceback__)

    return call


def _chain(error: BaseException) -> list[BaseException]:
    """The exception, and those that caused it or that it arose from."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found


def _script_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package's probe."""
    if traceback is None:
        return None
    following = _script_frames(traceback.tb_next)
    if os.path.dirname(traceback.tb_frame.f_code.co_filename).endswith(OWN_FOLDERS):
        return following
    traceback.tb_next = following
    return traceback
