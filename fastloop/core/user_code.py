"""Import and call the user's code by its dotted name.

A job holds the name only, which is imported and called in the process that measures: so a job
stays plain data, whatever it loads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastloop.core.types import BadData, Invalid, SignalExit, Unsupported

LOADER_DATA = "fastloop.options.dataset.user.UserDataset"
"""The `_target_` of the dataset that represents the data of a user's loader."""


def locate(path: str) -> Any:
    """Import the object with that dotted name; raises ValueError, in one line, if that fails."""
    try:
        return _import_path(path)
    except SignalExit:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ValueError(error_line(error)) from None


def check_usable(path: str) -> str:
    """Return the dotted name; raises ValueError if its object can't provide data."""
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
    """Names of the target's parameters; empty if it has no signature or is not called."""
    signature = _signature(locate(path))
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = signature.parameters.values() if signature else ()
    return frozenset(parameter.name for parameter in parameters if parameter.kind in kinds)


def check_arguments(path: str, kwargs: Mapping[str, Any], offered: Iterable[str] = ()) -> None:
    """Raise ValueError for an unknown or a missing argument.

    offered: names of arguments that are passed if the target has such a parameter.
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

    Raises BadData if the target raises.
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


def check_callable(path: str) -> str:
    """Return the dotted name; raises ValueError if its object can't be called."""
    target = locate(path)
    if not callable(target):
        raise ValueError(f"{type(target).__name__} is not callable")
    return path


@dataclass(frozen=True)
class UserFunction:
    """A function of one argument by its dotted name, imported on the first call in each process.

    The name is that of the function itself, whose other parameters are set by `kwargs`, of a
    callable object, or of a class or a function that returns one when called with `kwargs` alone.
    """

    target: str
    kwargs: dict[str, Any]

    def check(self) -> None:
        """Raise ValueError for arguments that the target does not take."""
        args = () if self._makes_the_function() else (None,)
        if error := _binding_error(self.target, args, self.kwargs):
            raise ValueError(f"{self.target}: {error}")

    def __call__(self, argument: Any) -> Any:
        """Call the function; raises whatever it raises."""
        return self._function(argument)

    def __reduce__(self) -> tuple[type[UserFunction], tuple[str, dict[str, Any]]]:
        return UserFunction, (self.target, self.kwargs)  # without the function, see cached_property

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        target = locate(self.target)
        if not self._makes_the_function():
            return partial(target, **self.kwargs) if self.kwargs else target
        function = call(self.target, self.kwargs)
        if not callable(function):
            raise BadData(f"{self.target}: it returns {type(function).__name__}, no function")
        return function

    def _makes_the_function(self) -> bool:
        if isinstance(locate(self.target), type):
            return True
        takes_none = not _binding_error(self.target, (), self.kwargs)
        return takes_none and bool(_binding_error(self.target, (None,), self.kwargs))


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


def _binding_error(path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The reason why the target can't be called with these arguments; empty if it can be, or has
    no signature."""
    try:
        inspect.signature(locate(path)).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:  # written in C, without a signature
        return ""
    return ""


def _is_called(target: Any) -> bool:
    return isinstance(target, type) or (callable(target) and not is_iterable(target))


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target) if _is_called(target) else None
    except (TypeError, ValueError):  # written in C, without a signature
        return None
