"""Run a script or a module as `python <script>` and `python -m <module>` do, in `__main__`."""

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

from fastloop.explain.attach.library_files import add_own_files
from fastloop.explain.attach.loader_places import is_probe


def become_script(arguments: Sequence[str]) -> None:
    """Run a script or a module in this process, as Python itself would run it.

    arguments: [-m] <script> [its arguments]. Exceptions of the script are raised. A printed
    traceback has only frames of the script.
    """
    add_own_files(arguments)
    run = _prepare_module(arguments[1:]) if arguments[0] == "-m" else _prepare_file(arguments)
    try:
        run()
    # The interpreter calls no excepthook for SystemExit, so the hook need not be replaced.
    except SystemExit:
        raise
    except BaseException:
        # The hook is replaced only now, because the script may have set one of its own.
        sys.excepthook = _without_own_frames(sys.excepthook)
        raise


def _prepare_module(arguments: Sequence[str]) -> Callable[[], Any]:
    """Prepare this process as `python -m` does; returns a function that runs the module."""
    sys.argv[:] = ["-m", *arguments[1:]]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())
    _empty_main()
    # python -m calls this function. The public run_module would run the module in another __main__.
    run = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]
    return partial(run, arguments[0])


def _prepare_file(arguments: Sequence[str]) -> Callable[[], Any]:
    """Prepare this process as `python <script>` does; returns a function that runs the script."""
    sys.argv[:] = arguments
    path = arguments[0]
    # If the script is a folder, Python runs the __main__.py in it.
    if Path(path).is_dir():
        sys.path.insert(0, os.path.abspath(path))
        _empty_main()
        run = runpy._run_module_as_main  # pyright: ignore[reportAttributeAccessIssue]
        return partial(run, "__main__", alter_argv=False)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    names = _empty_main()
    # Python follows symbolic links for sys.path, but not for __file__. Path.resolve would follow
    # them.
    file = os.path.abspath(path)
    loader = SourceFileLoader("__main__", file)
    names |= {"__file__": file, "__cached__": None, "__loader__": loader}
    return partial(_run_file, file, names)


def _run_file(file: str, names: dict[str, Any]) -> None:
    """Run the code of the file, with `names` as its global names."""
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, names)


def _empty_main() -> dict[str, Any]:
    """Reset the names of the module `__main__` to those of a new module, and return them."""
    # The module object stays the same, because others may have imported __main__ already.
    names = vars(sys.modules["__main__"])
    builtins = names["__builtins__"]
    names.clear()
    names |= {"__name__": "__main__", "__doc__": None, "__package__": None, "__loader__": None}
    names |= {"__spec__": None, "__annotations__": {}, "__builtins__": builtins}
    return names


def _without_own_frames(hook: Callable[..., Any]) -> Callable[..., Any]:
    """An excepthook that calls the script's `hook`, with only the script's frames in tracebacks."""

    def call(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        # The script's hook is put back first, because it may look at sys.excepthook, or print an
        # error of its own.
        sys.excepthook = hook
        for error in _chain(value):
            error.__traceback__ = _script_frames(error.__traceback__)
        hook(kind, value, value.__traceback__)

    return call


def _chain(error: BaseException) -> list[BaseException]:
    """The exception with all of its causes and contexts, each once."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found


def _script_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of fastloop's probe; None if no frame is left.

    The probe is the code of fastloop that wraps functions of torch.
    """
    if traceback is None:
        return None
    following = _script_frames(traceback.tb_next)
    if is_probe(traceback.tb_frame.f_code.co_filename):
        return following
    traceback.tb_next = following
    return traceback
