"""Hide the frames of wrappers from the `stacklevel` of warnings."""

from __future__ import annotations

from types import CodeType
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Any)


def skip_in_warnings(function: _Function) -> _Function:
    """The wrapper, hidden from the `stacklevel` of warnings.warn.

    A warning of the wrapped function is shown at the line of the wrapper's caller, as if there were
    no wrapper.
    """
    function.__code__ = _hide(function.__code__)
    return function


def _hide(code: CodeType) -> CodeType:
    """The code with another file name, also in the code of functions inside of it."""
    # For `stacklevel`, Python doesn't count frames of the import system, which it recognizes by the
    # words "importlib" and "_bootstrap" in the name of their file. The folder stays in the name:
    # tracebacks leave out frames of this folder.
    name = f"{code.co_filename} (skipped like importlib._bootstrap)"
    inside = [_hide(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.replace(co_filename=name, co_consts=tuple(inside))
