"""Import and call the user's code by its dotted name.

A job holds only the name, and so remains plain data. The process that measures imports the object
and calls it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fastloop.core.text import first_line
from fastloop.core.types import BadData, Invalid, SignalExit, Unsupported

LOADER_DATA = "fastloop.options.dataset.user.UserDataset"
"""The `_target_` of the dataset that represents the data of a user's loader."""
IN_A_WORKER = re.compile(r"Caught (\w+) in DataLoader worker process")
"""Torch's words in the first line of an exception that was raised in a worker, with its class."""
ENDS_ON_IMPORT = "importing it ends the program; move that under if __name__ == '__main__':"
"""The fault of a script that reads its arguments, or exits, when it is imported, in words."""
TRACEBACK = "Traceback (most recent call last):\n"


def locate(path: str) -> Any:
    """Import the object with that dotted name; raises ValueError, in one line, if that fails."""
    try:
        return _import_path(path)
    # A user's module may raise anything, even by sys.exit() at its top level. Only an exit that a
    # signal has requested really ends the process.
    except SignalExit:
        raise
    except SystemExit as error:
        raise ValueError(f"{error_line(error)}: {ENDS_ON_IMPORT}") from None
    except Exception as error:
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
    # Objects with __getitem__ alone are iterable by the old sequence protocol, as Datasets are.
    return hasattr(thing, "__iter__") or hasattr(thing, "__getitem__")


OFFERED_TO_MODEL = ("input_shape", "num_classes")
"""Arguments that fastloop passes to a model that has such parameters."""


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The parameters of a class or function that are passed by name."""

    names: tuple[str, ...]
    required: frozenset[str]
    """The names of the parameters without a default."""
    takes_any: bool
    """True if the class or function takes arguments of any name."""


def parameters_of(path: str) -> Parameters | None:
    """The parameters of the target, the object with that dotted name; None if it has no signature
    or is not called."""
    signature = _signature(locate(path))
    if signature is None:
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    everything = signature.parameters.values()
    named = [each for each in everything if each.kind in kinds]
    return Parameters(
        names=tuple(each.name for each in named),
        required=frozenset(each.name for each in named if each.default is inspect.Parameter.empty),
        takes_any=any(each.kind == inspect.Parameter.VAR_KEYWORD for each in everything),
    )


def parameter_names(path: str) -> frozenset[str]:
    """Names of the target's parameters; empty if it has no signature or is not called."""
    parameters = parameters_of(path)
    return frozenset(parameters.names if parameters else ())


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
    """Call the object with that dotted name and return the result; an iterable is returned as is.

    Raises BadData if the target raises.
    """
    target = locate(path)
    if not _is_called(target):
        return target
    # These classes are fastloop's own, and their messages name the cause already.
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

    The name may refer to the function itself (`kwargs` sets its other parameters), to a callable
    object, or to a class or function that returns the function when called with `kwargs` alone.
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
        # The cached function itself may not be picklable, and each process imports its own.
        return UserFunction, (self.target, self.kwargs)

    @cached_property
    def _function(self) -> Callable[[Any], Any]:
        target = locate(self.target)
        if not self._makes_the_function():
            return partial(target, **self.kwargs) if self.kwargs else target
        function = call(self.target, self.kwargs)
        if not callable(function):
            raise BadData(f"{self.target}: it returns {type(function).__name__}, not a function")
        return function

    def _makes_the_function(self) -> bool:
        if isinstance(locate(self.target), type):
            return True
        # A function that can be called with kwargs alone, but not with an argument in addition,
        # must be one that makes the function.
        takes_no_argument = not _binding_error(self.target, (), self.kwargs)
        return takes_no_argument and bool(_binding_error(self.target, (None,), self.kwargs))


def error_line(error: BaseException) -> str:
    """Name of the error's class and first line of its message. For an error of a DataLoader worker,
    these are taken from the original error in torch's message."""
    if of_worker := worker_error_line(error):
        return of_worker
    return f"{type(error).__name__}: {first_line(error)}"


def worker_error_line(error: BaseException) -> str | None:
    """Name of the class and first line of the message of the exception that was raised in a
    DataLoader worker; None if the message of `error` is not torch's message about a worker.
    """
    # torch raises the exception again with the worker's traceback as its message. The original
    # error is at the end, after the indented lines of frames. Its own lines may be indented, too.
    text = str(error).strip()
    # The class of the error may add its own words in front of torch's.
    found = IN_A_WORKER.search(text.partition("\n")[0])
    if found is None:
        return None
    raised = re.compile(rf"^(?:\w+\.)*({found[1]}(?::.*)?)$", re.M)
    # The error is after its last traceback, unless its own message quotes a further one.
    own = raised.search(text, max(0, text.rfind(TRACEBACK))) or raised.search(text)
    return own[1] if own else text.splitlines()[-1]


def _import_path(path: str) -> Any:
    module, _, name = path.rpartition(".")
    if not module:
        return importlib.import_module(path)
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Another module that is missing inside of this one is the user's error to see. If part of
        # `module` itself is missing, that part may be a class, as in `package.Class.method`.
        if "." not in module or not f"{module}.".startswith(f"{error.name}."):
            raise
        holder = _import_path(module)
    return getattr(holder, name)


def _binding_error(path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The reason why the target can't be called with these arguments; empty if it can be, or has
    no signature."""
    # ValueError: the target is written in C and has no signature.
    try:
        inspect.signature(locate(path)).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return ""
    return ""


def _is_called(target: Any) -> bool:
    return isinstance(target, type) or (callable(target) and not is_iterable(target))


def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target) if _is_called(target) else None
    except (TypeError, ValueError):  # written in C, without a signature
        return None
