"""Import and call the user's code by its dotted name.

A job holds the name only, which is imported and called in the process that measures: so a job
stays plain data, whatever it loads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastloop.core.types import BadData, Invalid, SignalExit, Unsupported


def locate(path: str) -> Any:
    """Import the object with that dotted name; raises ValueError, in one line, where that fails."""
    try:
        return _import_path(path)
    except SignalExit:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(error_line(error)) from None


def check_usable(path: str) -> str:
    """Return the dotted name; raises ValueError where its object can't provide data."""
    target = locate(path)
    if isinstance(target, Iterator):
        raise ValueError("an iterator has one epoch only; name the function that returns it")
    if not _is_called(target) and not is_iterable(target):
        kind = type(target).__name__
        raise ValueError(f"{kind} is neither callable nor iterable")
    return path


def is_iterable(thing: Any) -> bool:
    """True for an argument that iter() accepts."""
    return hasattr(thing, "__iter__") or hasattr(thing, "__getitem__")


def parameter_names(path: str) -> frozenset[str]:
    """Names of the target's parameters; empty where it has no signature or is not called."""
    signature = _signature(locate(path))
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature.parameters.values() if signature else ()
    return frozenset(parameter.name for parameter in parameters if parameter.kind in kinds)


def check_arguments(path: str, kwargs: Mapping[str, Any], offered: Iterable[str] = ()) -> None:
    """Raise ValueError for an unknown or a missing argument.

    offered: names of arguments that are passed where the target has such a parameter.
    """
    target = locate(path)
    signature = _signature(target)
    if kwargs and not _is_called(target):
        raise ValueError(f"{path}: it is not called, and takes no {', '.join(kwargs)}")
    if signature is None:
        return
    arguments = dict.fromkeys(parameter_names(path) & set(offered)) | dict(kwargs)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def call(path: str, arguments: Mapping[str, Any]) -> Any:
    """Call the target and return its result; an iterable is returned as it is.

    Raises BadData where the target raises.
    """
    target = locate(path)
    if not _is_called(target):
        return target
    try:
        return target(**arguments)
    except (BadData, Invalid, Unsupported):
        raise
    except Exception as error:
        raise BadData(f"{path}: {error_line(error)}") from error


def error_line(error: BaseException) -> str:
    """Name of the error's class and first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _import_path(path: str) -> Any:
    module, _, name = path.rpartition(".")
    if not module:
        return importlib.import_module(path)
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if "." not in module or not f"{module}.".startswith(f"{error.name}."):
            raise
        holder = _import_path(module)  # may be a class
    return getattr(holder, name)


def _is_called(target: Any) -> bool:
    return isinstance(target, type) or (callable(target) and not is_iterable(target))


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target) if _is_called(target) else None
    except (TypeError, ValueError):  # written in C, without a signature
        return None
