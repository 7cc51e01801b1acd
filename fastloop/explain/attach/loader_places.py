"""Find the places in a script at which a DataLoader is made and iterated over."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from fastloop.explain.attach.library_files import is_library, is_standard, package_of

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

PROBE_FOLDERS = tuple(
    os.path.join("fastloop", *folder) for folder in (("explain", "attach"), ("observe",), ("tune",))
)
"""Ends of the folders with the modules that wrap torch's functions."""
TORCH = "torch"
"""Name of the package with DataLoader."""
LOADER_METHODS = "__init__", "__iter__", "__next__"
"""Names of methods of classes that are derived from DataLoader."""
ANY_NAME = "**"
"""Stands for `**kwargs`: the loader's class accepts any further keyword argument."""


def place_in_script() -> str:
    """File and line that uses a DataLoader: those of `frame_in_script`; empty if there is none, as
    in a thread that only calls next()."""
    return _show_place(frame_in_script())


def place_of_pass() -> str:
    """File and line that begin a pass: those of `place_in_script`, or of the nearest frame in an
    installed library if this thread runs none of the script's code."""
    frame = frame_in_script() or next(_library_frames(), None)
    return _show_place(frame)


def frame_in_script() -> FrameType | None:
    """The frame that uses a DataLoader: the nearest one outside of libraries."""
    # All loops over a class derived from DataLoader share its methods, so they do not show where a
    # loop is.
    for frame in _frames(sys._getframe(1)):
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if not is_library(path) and not is_probe(path) and name not in LOADER_METHODS:
            return frame
    return None


def _library_frames() -> Iterator[FrameType]:
    for frame in _frames(sys._getframe(1)):
        path = frame.f_code.co_filename
        # torch's frames, such as those of DataLoader itself, say nothing of the loop.
        if package_of(path) not in ("", TORCH) and not is_probe(path):
            yield frame


def _show_place(frame: FrameType | None) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def place_of_call(loader: DataLoader[Any] | None) -> str:
    """Path and line of the call that makes the DataLoader, which may be a library's.

    loader: None if it is not made yet.
    """
    for frame in _frames(sys._getframe(1)):
        path = frame.f_code.co_filename
        # A class derived from DataLoader calls DataLoader.__init__ in its own, and a library may
        # have wrapped it, as Lightning does: such a frame has the loader as its first argument.
        if not is_probe(path) and not _is_of(frame, loader):
            # Code that exec() runs is in no file, and has a name such as <string>.
            where = path if path.startswith("<") else os.path.abspath(path)
            return f"{where}:{frame.f_lineno}"
    return ""


def find_original(
    loader: DataLoader[Any], is_known: Callable[[object], bool]
) -> DataLoader[Any] | None:
    """The script's DataLoader from which a library is making this one; None if there is none.

    Lightning and Accelerate make their own from the arguments of the script's, to set a sampler
    that divides the samples. is_known: true for a DataLoader that may be the original.
    """
    for frame in _frames(sys._getframe(1)):
        path = frame.f_code.co_filename
        # The __init__ of a class that the script derives from DataLoader is a part of making it.
        if is_probe(path) or _is_of(frame, loader):
            continue
        if not is_library(path):
            return None
        # The function of the library has the original in a variable, and the dataset is the same.
        for value in frame.f_locals.values():
            is_other = value is not loader and is_known(value)
            if is_other and getattr(value, "dataset", None) is loader.dataset:
                return value
    return None


def names_of_arguments(kind: type) -> list[str] | None:
    """The names of the arguments of a class derived from DataLoader, with ANY_NAME if it takes any
    other one. None: it passes on its positional arguments, or has no readable signature."""
    with suppress(TypeError, ValueError):
        parameters = [*inspect.signature(kind.__init__).parameters.values()][1:]
        if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            return [ANY_NAME if each.kind is each.VAR_KEYWORD else each.name for each in parameters]
    return None


def is_probe(path: str) -> bool:
    """True for a file with functions that wrap those of torch."""
    return os.path.dirname(path).endswith(PROBE_FOLDERS)


def _is_of(frame: FrameType, loader: DataLoader[Any] | None) -> bool:
    """True for the frame of a method that has the loader as its first argument."""
    names = frame.f_code.co_varnames
    return bool(names) and loader is not None and frame.f_locals.get(names[0]) is loader


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        path = frame.f_code.co_filename
        # Python's own functions only pass a call on, as `typing` does for DataLoader[int](dataset),
        # and `runpy` for a module that `python -m` runs.
        if not is_standard(path):
            yield frame
        frame = frame.f_back
