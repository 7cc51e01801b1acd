"""What the user has written, by its dotted name: found, and called with the arguments that it
takes.

Only the name is kept, and it is called in the process that measures it: so a job stays plain data,
whatever it loads.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fastloop.endings import is_by_signal
from fastloop.types import BadData, Invalid, Unsupported

OPTION_METHODS = {
    "dataset": ("fetch", "open"),
    "loader": ("open",),
    "model": ("check", "build"),
}
BRINGING = {"loader": "fastloop.own_loader.OwnLoader", "model": "fastloop.own_model.OwnModel"}
"""Of a group, the option that stands for what is brought; a dataset's is a yaml of its own."""


def is_option(group: str, found: Any) -> bool:
    """True where a `_target_` of that group has the methods of an option."""
    methods = OPTION_METHODS.get(group, ())
    iterable = group == "loader" and hasattr(found, "__iter__")  # its open is something else
    return not iterable and all(callable(getattr(found, name, None)) for name in methods)


def long_form(
    group: str, node: dict[str, Any], custom: Any, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The node; where its `_target_` is a Dataset, a loader or a model and no option, that of the
    option which calls it: `custom` is the dataset's. Raises ValueError as `located` does.

    defaults: the settings of the group's default, which stand in the node where only the
    `_target_` was changed. Those that the target does not take are left out.
    """
    target = str(node["_target_"])
    found = located(target)
    if group not in OPTION_METHODS:
        return node
    left_over = {name for name, value in node.items() if defaults.get(name, ...) == value}
    left_over -= parameters(target)
    kwargs = {k: value for k, value in node.items() if k not in left_over and k != "_target_"}
    if is_option(group, found):
        return kwargs | {"_target_": target}
    usable(target)
    long = custom if group == "dataset" else {"_target_": BRINGING[group]}
    return long | {"target": target, "kwargs": kwargs}


def located(path: str) -> Any:
    """What that dotted name names; raises ValueError, in one line, where it can't be imported."""
    try:
        return _named(path)
    except (Exception, SystemExit) as error:  # whatever a module of the user's does
        if isinstance(error, SystemExit) and is_by_signal(error):
            raise
        raise ValueError(said_of(error)) from None


def usable(path: str) -> str:
    """The dotted name; raises ValueError where it names nothing that could give data."""
    found = located(path)
    if isinstance(found, Iterator):
        raise ValueError("an iterator has one epoch only; name the function that makes it")
    if not _is_called(found) and not is_iterable(found):
        kind = type(found).__name__
        raise ValueError(f"it is a {kind}, neither to be called nor to be iterated over")
    return path


def is_iterable(thing: Any) -> bool:
    """True for what iter() takes."""
    return hasattr(thing, "__iter__") or hasattr(thing, "__getitem__")


def parameters(path: str) -> frozenset[str]:
    """Names of the arguments that it takes; none where it tells none, or is not called."""
    signature = _signature(located(path))
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    taken = signature.parameters.values() if signature else ()
    return frozenset(one.name for one in taken if one.kind in kinds)


def check_arguments(path: str, kwargs: Mapping[str, Any], offered: Iterable[str] = ()) -> None:
    """Raise ValueError for an argument that it does not take, or lacks."""
    found = located(path)
    signature = _signature(found)
    if kwargs and not _is_called(found):
        raise ValueError(f"{path}: it is not called, and takes no {', '.join(kwargs)}")
    if signature is None:
        return
    given = dict.fromkeys(parameters(path) & set(offered)) | dict(kwargs)
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ValueError(f"{path}: {error}") from None


def called(path: str, arguments: Mapping[str, Any]) -> Any:
    """What it gives; itself where it is not to be called. Raises BadData where it raises."""
    found = located(path)
    if not _is_called(found):
        return found
    try:
        return found(**arguments)
    except (BadData, Invalid, Unsupported):
        raise
    except Exception as error:
        raise BadData(f"{path}: {said_of(error)}") from error


def said_of(error: BaseException) -> str:
    """The error's name and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    if not module:
        return importlib.import_module(path)
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if "." not in module or not f"{module}.".startswith(f"{error.name}."):
            raise
        holder = _named(module)  # a class may hold it
    return getattr(holder, name)


def _is_called(found: Any) -> bool:
    return isinstance(found, type) or (callable(found) and not is_iterable(found))


def _signature(found: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(found) if _is_called(found) else None
    except (TypeError, ValueError):  # written in C, and silent about it
        return None
